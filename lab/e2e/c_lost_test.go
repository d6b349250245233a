//go:build e2e

package e2e

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"hairpin/lab"
	"hairpin/lab/cluster"
	"hairpin/lab/probe"
)

// TestFirstPacketLost drops the first packet of a connection before it reaches the endpoint's pod,
// as on an overloaded machine. The connection is established when the client retransmits.
func TestFirstPacketLost(t *testing.T) {
	e := open(t)
	const (
		drop = "for n in /run/netns/cni-*; do nsenter --net=$n nft 'add table inet lost; " +
			"add chain inet lost in { type filter hook prerouting priority -300; }; add rule inet lost in tcp dport " +
			"8080 tcp flags & (syn|ack) == syn counter drop'; done"
		heed = "for n in /run/netns/cni-*; do nsenter --net=$n nft 'add table inet lost; delete table inet lost'; done"
	)
	everywhere := func(script string) {
		for _, n := range e.Lab().Nodes() {
			_, err := n.Exec(e.Context(), "sh", "-c", script)
			e.check(err)
		}
	}
	node := e.Lab().Node("node-b")
	var wg sync.WaitGroup
	everywhere(drop)
	defer everywhere(heed)
	ask := func(from lab.Place, to netip.AddrPort) {
		wg.Go(func() {
			a := lab.Get(e.Context(), from, probe.Request{Protocol: "tcp", To: to, Timeout: 15 * time.Second})
			if a.Error != "" || a.Millis < 900 {
				t.Errorf("%s → %s: after %.0f ms: %q", from.Name(), to, a.Millis, a.Error)
			}
		})
	}
	for _, a := range node.Addresses() {
		ask(e.Lab().Host(cluster.ClientName), netip.AddrPortFrom(a.Addr(), 30080))
		ask(e.Lab().Node("node-a").Host, netip.AddrPortFrom(a.Addr(), 30080))
	}
	for _, ip := range e.service("web") {
		ask(e.Lab().Node("node-a").Host, netip.AddrPortFrom(ip, 80))
		ask(e.place(e.clientPod("node-a").Name), netip.AddrPortFrom(ip, 80))
	}
	time.Sleep(500 * time.Millisecond) // all have sent their first packet, and none has retransmitted
	everywhere(heed)
	wg.Wait()
}
