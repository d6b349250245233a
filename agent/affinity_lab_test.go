package agent_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
	"hairpin/pipeline"
)

// sticky is the demo's Service with session affinity, for one family and protocol, and a client of
// it in a pod of node-a.
type sticky struct {
	t    *testing.T
	l    *lab.Lab
	a    *lab.Node
	from lab.Place
	host netip.Addr // the client's address
	to   []netip.AddrPort
	udp  bool
}

// manifest changes a manifest file, and returns a function that undoes it.
func manifest(t *testing.T, l *lab.Lab, name, pattern, with string) (undo func()) {
	t.Helper()
	file := filepath.Join(l.Dir(), "manifests", name)
	text, err := os.ReadFile(file)
	noError(t, err)
	write := func(text string) {
		noError(t, os.WriteFile(file+".new", []byte(text), 0o644))
		noError(t, os.Rename(file+".new", file))
	}
	changed := regexp.MustCompile(pattern).ReplaceAllString(string(text), with)
	if changed == string(text) {
		t.Fatalf("%s has no %s", name, pattern)
	}
	write(changed)
	return func() { write(string(text)) }
}

// timeout changes the Service's timeout, and waits until Open vSwitch has it.
func (s *sticky) timeout(d time.Duration) {
	s.t.Helper()
	seconds := int(d / time.Second)
	manifest(s.t, s.l, "services.yaml", "timeoutSeconds: [0-9]+", fmt.Sprintf("timeoutSeconds: %d", seconds))
	for _, n := range s.l.Nodes() {
		eventually(s.t, 20*time.Second, "the timeout is known", func() (bool, string) {
			out := sh(s.t, n, fmt.Sprintf("ovs-ofctl -O OpenFlow15 --no-stats dump-flows %s table=%d",
				claims.ServiceBridge, pipeline.SvcEndpointDNAT))
			return strings.Contains(out, fmt.Sprintf("idle_timeout=%d,", min(seconds, 65535))), out
		})
		waitServes(s.t, n)
	}
}

// asks connects to one of the addresses and returns the endpoint that replies.
func (s *sticky) asks(to netip.AddrPort) string {
	s.t.Helper()
	protocol := "tcp"
	if s.udp {
		protocol = "udp"
	}
	answer := lab.Get(s.t.Context(), s.from,
		probe.Request{Protocol: protocol, To: to, Timeout: time.Duration(*slow) * 3 * time.Second})
	if answer.Error != "" {
		s.t.Fatalf("%s, %s: %s", to, protocol, answer.Error)
	}
	return answer.Name
}

// remembered returns what node-a has learned of the client, for this family and either protocol.
func (s *sticky) remembered() string {
	s.t.Helper()
	out := sh(s.t, s.a, fmt.Sprintf("ovs-ofctl -O OpenFlow15 dump-flows %s table=%d", claims.ServiceBridge,
		pipeline.SvcSessionAffinity))
	var found []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, "_src="+s.host.String()+" ") {
			found = append(found, line)
		}
	}
	return strings.Join(found, "")
}

// forgotten waits until node-a has no affinity of the client.
func (s *sticky) forgotten(limit time.Duration) {
	s.t.Helper()
	eventually(s.t, limit, "the client is forgotten", func() (bool, string) {
		text := s.remembered()
		return text == "", text
	})
}

// TestSessionAffinity: a client keeps its endpoint at all addresses of a Service's port until the
// timeout has passed since its last new connection. Packets of existing connections do not matter.
// Afterwards it may get another endpoint.
func TestSessionAffinity(t *testing.T) {
	t.Parallel()
	l := startDemoIn(t, cluster.ModeShared, "[default]", "service-engine = "+cluster.EngineOVN)
	for _, n := range l.Nodes() {
		option(t, n, "service-engine", cluster.EngineOpenFlow)
	}
	for _, n := range l.Nodes() {
		waitServes(t, n)
	}
	a := l.Node("node-a")
	pods := a.Pods()
	pod := pods[slices.IndexFunc(pods, func(p *lab.Pod) bool { return p.Name() == "pod-a2" })]
	outside := l.Host("client")
	node4, node6 := netip.MustParseAddrPort("172.18.0.3:30011"), netip.MustParseAddrPort("[fc00:f853:ccd::3]:30011")
	cluster4, cluster6 := netip.MustParseAddrPort("10.96.1.11:80"), netip.MustParseAddrPort("[fd00:10:96::111]:80")
	short := time.Duration(*slow) * 4 * time.Second
	for _, s := range []*sticky{
		{from: pod, host: pod.IPs()[0], to: []netip.AddrPort{cluster4, node4}},
		{from: outside, host: outside.Addresses()[1].Addr(), to: []netip.AddrPort{node6}},
	} {
		t.Run(fmt.Sprintf("%s, %s", s.from.Name(), s.host), func(t *testing.T) {
			s.t, s.l, s.a = t, l, a
			s.timeout(24 * time.Hour)
			s.staysAndMoves(t)
			s.timeout(short)
			s.lasts(t, short)
		})
	}
	for _, to := range [][]netip.AddrPort{{cluster4, node4}, {cluster6, node6}} {
		s := &sticky{t: t, from: a, to: to}
		s.stays(t)
	}
	t.Run("policy Local", func(t *testing.T) {
		s := &sticky{t: t, l: l, a: a, from: outside, host: outside.Addresses()[0].Addr()}
		s.local(t)
	})
}

// local: with policy Local, and at a load balancer's address, a client keeps one of the entry
// node's own endpoints. Its first datagram gets a reply.
func (s *sticky) local(t *testing.T) {
	balancer := netip.MustParseAddrPort("203.0.113.77:80")
	s.to = []netip.AddrPort{balancer, netip.MustParseAddrPort("172.18.0.3:30011")}
	s.timeout(24 * time.Hour)
	manifest(t, s.l, "services.yaml", "(?s)(name: sticky\n  namespace: default\nspec:\n  type: )NodePort(.*)$",
		"${1}LoadBalancer\n  externalTrafficPolicy: Local${2}status: {loadBalancer: {ingress: [{ip: 203.0.113.77}]}}\n")
	eventually(t, 20*time.Second, "the balancer's address is served", func() (bool, string) {
		out := sh(t, s.a, "ovs-ofctl -O OpenFlow15 --no-stats dump-flows "+claims.ServiceBridge)
		return strings.Contains(out, balancer.Addr().String()), out
	})
	waitServes(t, s.a)
	s.forgotten(time.Second)
	s.udp = true
	if first := s.asks(balancer); first != "pod-a1" && first != "pod-a2" {
		t.Fatalf("%s answers, which is not on the entry node", first)
	}
	s.staysAndMoves(t)
	if text := s.remembered(); text == "" {
		t.Error("nothing is learned of the client")
	}
}

// stays: the client keeps its endpoint at each address.
func (s *sticky) stays(t *testing.T) {
	first := s.asks(s.to[0])
	for range 20 {
		for _, to := range s.to {
			if got := s.asks(to); got != first {
				t.Fatalf("%s: %s (UDP: %v) is answered by %s, the first connection was by %s", s.from.Name(), to, s.udp,
					got, first)
			}
		}
	}
}

// staysAndMoves: the client keeps its endpoint; no other client's affinity expires.
func (s *sticky) staysAndMoves(t *testing.T) {
	for _, s.udp = range []bool{false, true} {
		s.stays(t)
		if text := s.remembered(); !strings.Contains(text, "idle_timeout=65535") {
			t.Errorf("24 h are not remembered for the longest possible time:\n%s", text)
		}
	}
	s.udp = false
	first := s.asks(s.to[0])
	undo := manifest(t, s.l, "slices.yaml",
		`(conditions: \{ready: )true(\}\n  nodeName: .*\n  targetRef: \{kind: Pod, namespace: default, name: `+first+
			`\})`, "${1}false$2")
	var second string
	eventually(t, 20*time.Second, "the client moves", func() (bool, string) {
		second = s.asks(s.to[0])
		return second != first, second
	})
	for range 10 {
		if got := s.asks(s.to[0]); got != second {
			t.Fatalf("%s answers, and %s before", got, second)
		}
	}
	undo()
	waitServes(t, s.a)
	for range 10 {
		if got := s.asks(s.to[0]); got != second {
			t.Fatalf("%s answers when %s is back; the client's is %s", got, first, second)
		}
	}
}

// lasts: each new connection extends the affinity, and nothing else does.
func (s *sticky) lasts(t *testing.T, timeout time.Duration) {
	asked := time.Now()
	first, begin, enough := s.asks(s.to[0]), time.Now(), time.Now().Add(60*timeout)
	for time.Since(begin) < 3*timeout {
		eventually(t, timeout, "a part of the timeout passes",
			func() (bool, string) { return time.Since(asked) > timeout/4, "" })
		before := asked
		asked = time.Now()
		switch got := s.asks(s.to[0]); {
		case time.Since(before) > timeout*3/4: // a busy machine: the affinity may have expired
			if first, begin = got, time.Now(); begin.After(enough) {
				t.Fatal("the machine is too slow")
			}
		case got != first:
			t.Fatalf("%s answers after %v, %s before", got, time.Since(begin), first)
		}
	}
	stream, err := lab.StartStream(t.Context(), s.from,
		probe.StreamConfig{Protocol: "tcp", To: s.to[0], Long: 1, Every: 100 * time.Millisecond, Speak: true,
			Timeout: time.Duration(*slow) * 3 * time.Second, Duration: time.Hour})
	noError(t, err)
	defer func() { _, _ = stream.End() }()
	s.forgotten(5 * timeout)
	eventually(t, 30*timeout, "the client gets another endpoint", func() (bool, string) {
		s.forgotten(5 * timeout)
		got := s.asks(s.to[0])
		return got != first, got
	})
}
