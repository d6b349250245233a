package run

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"hairpin/cluster"
)

// TestClaimsFlood: however many claims come in, and with an API that does not answer, there is one question for each address, and a
// few goroutines; what is not asked is counted.
func TestClaimsFlood(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	silent := http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		asked.Add(1)
		<-q.Context().Done()
	})}
	go func() { _ = silent.Serve(server) }()
	defer func() { _ = silent.Close() }()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://" + server.Addr().String(), QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	inbox, dropped := newInbox(), 0
	v := newVerifier(client, inbox, func() { dropped++ })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { v.run(ctx); close(ended) }()
	before := runtime.NumGoroutine()
	const addresses, claims = 3, 30000
	e := &cluster.EgressIP{Owner: cluster.Owner{Kind: "EgressIP", Name: "e"}}
	for i := range claims {
		v.ask(e, netip.AddrFrom4([4]byte{172, 18, 0, byte(i % addresses)}), "node-b")
	}
	for end := time.Now().Add(10 * time.Second); asked.Load() < addresses && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	// Each connection to the server has some of both sides.
	if n := runtime.NumGoroutine() - before; n > 40 {
		t.Errorf("%d more goroutines", n)
	}
	verdicts := 0
	for end := time.Now().Add(10 * time.Second); verdicts < addresses && time.Now().Before(end); time.Sleep(time.Millisecond) {
		verdicts += len(inbox.take().verdicts)
	}
	if verdicts != addresses || asked.Load() != addresses || dropped != claims-addresses {
		t.Errorf("%d questions, %d verdicts, %d dropped of %d claims", asked.Load(), verdicts, dropped, claims)
	}
	v.ask(e, netip.MustParseAddr("172.18.0.1"), "node-b") // the last one was answered: it may be asked about again
	for end := time.Now().Add(10 * time.Second); asked.Load() == addresses && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if asked.Load() != addresses+1 {
		t.Error("an address is asked about once, and never again")
	}
	cancel()
	<-ended
	for i := range 2 * mostQuestions { // nobody answers any more
		v.ask(e, netip.AddrFrom4([4]byte{172, 19, byte(i >> 8), byte(i)}), "node-b")
	}
	if n := len(v.queue); n != mostQuestions {
		t.Errorf("%d questions wait", n)
	}
}

// TestClaimBatch: the agent is woken for claims a few times a second, at once for the first, and holds a limited number.
func TestClaimBatch(t *testing.T) {
	dropped := 0
	w, b, now := claimBatch{drop: func() { dropped++ }}, newInbox(), time.Now()
	flood := func(n int) {
		for i := range n {
			w.add(claim{netip.MustParseAddr("172.18.0.33"), cluster.MAC{2, 0, 0, byte(i >> 16), byte(i >> 8), byte(i)}})
		}
	}
	flood(1)
	if wait := w.hand(now, b); wait != listenAgain || len(b.mail.claims) != 1 {
		t.Errorf("the first: %v, %d", wait, len(b.mail.claims))
	}
	flood(10 * mostClaims)
	if wait := w.hand(now, b); wait != claimsEvery || len(b.mail.claims) != 1 {
		t.Errorf("a moment later: %v, %d", wait, len(b.mail.claims))
	}
	if w.hand(now.Add(claimsEvery), b); len(b.mail.claims) != mostClaims || dropped != 9*mostClaims+1 {
		t.Errorf("the agent has %d, %d were dropped", len(b.mail.claims), dropped)
	}
}
