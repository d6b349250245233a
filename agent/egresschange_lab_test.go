package agent_test

import (
	"cmp"
	"flag"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
)

var egressChanges = flag.Int("egress.changes", 10, "changes in TestSourceOfChangedAddress")

// TestSourceOfChangedAddress: an EgressIP gets another address, on another node, again and again,
// while pods of both nodes send hundreds of packets a second, each from another port: a new
// connection. None has its node's address as source.
func TestSourceOfChangedAddress(t *testing.T) {
	x := startSources(t, cmp.Or(*egressMode, cluster.ModeShared))
	carriers := []string{"node-b", "node-c"}
	change := func(i int) {
		for n := range x.w.can {
			x.w.can[n] = n == carriers[i%2]
		}
		x.w.eips["first"] = &egressSpec{addresses: pools[[]string{"first", "second"}[i%2]][i%2*2:][:2]}
		x.become("addresses on " + carriers[i%2])
	}
	change(0)
	x.flood()
	for i := range *egressChanges {
		if change(i + 1); t.Failed() {
			return
		}
	}
	t.Logf("%d packets", x.rec.packets)
}

// flood lets all pods send UDP packets to the external machine, each from another port, until the
// test ends.
func (x *sources) flood() {
	stop, done := make(chan struct{}), sync.WaitGroup{}
	for _, s := range x.senders {
		done.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
				if place := s.place.Load(); place != nil {
					_ = lab.Do(*place, func() error { return datagrams(s.port, 3) })
				}
			}
		})
	}
	x.t.Cleanup(func() { close(stop); done.Wait() })
}

// datagrams sends packets over both families, each from another port.
func datagrams(port uint16, n int) error {
	for range n {
		for _, f := range families {
			c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(farServers[f], port)))
			if err != nil {
				return err
			}
			_, _ = c.Write([]byte("x")) // the reply to an earlier one may be an error
			_ = c.Close()
		}
	}
	return nil
}
