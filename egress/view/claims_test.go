package view

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"hairpin/cluster"
	"hairpin/kubeapi"
)

// TestClaimsFlood: with any number of claims, and an API that does not reply, there is one request
// per address, and a few goroutines. Requests that are not sent are counted.
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
	client, err := kubeapi.New(&rest.Config{Host: "http://" + server.Addr().String(), QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	var verdicts atomic.Int64
	dropped := 0
	v := NewVerifier(client, func(Verdict) { verdicts.Add(1) }, func() { dropped++ })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { v.Run(ctx); close(ended) }()
	before := runtime.NumGoroutine()
	const addresses, claims = 3, 30000
	e := &cluster.EgressIP{Owner: cluster.Owner{Kind: "EgressIP", Name: "e"}}
	for i := range claims {
		v.Ask(e, netip.AddrFrom4([4]byte{172, 18, 0, byte(i % addresses)}), "node-b")
	}
	for end := time.Now().Add(10 * time.Second); asked.Load() < addresses &&
		time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	// Each connection to the server has some on both sides.
	if n := runtime.NumGoroutine() - before; n > 40 {
		t.Errorf("%d more goroutines", n)
	}
	for end := time.Now().Add(10 * time.Second); verdicts.Load() < addresses &&
		time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if verdicts.Load() != addresses || asked.Load() != addresses || dropped != claims-addresses {
		t.Errorf("%d questions, %d verdicts, %d dropped of %d claims", asked.Load(), verdicts.Load(), dropped, claims)
	}
	v.Ask(e, netip.MustParseAddr("172.18.0.1"), "node-b") // the last one was answered: it may be requested again
	for end := time.Now().Add(10 * time.Second); asked.Load() == addresses &&
		time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if asked.Load() != addresses+1 {
		t.Error("an address is asked about once, and never again")
	}
	cancel()
	<-ended
	for i := range 2 * maxWaiting { // no replies any more
		v.Ask(e, netip.AddrFrom4([4]byte{172, 19, byte(i >> 8), byte(i)}), "node-b")
	}
	if n := len(v.queue); n != maxWaiting {
		t.Errorf("%d questions wait", n)
	}
}
