package kernel_test

import (
	"errors"
	"net/netip"
	"testing"

	"hairpin/apply"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/host"
)

// TestLinkAppears checks that Apply leaves a link that appears during it to the next Apply. Without
// its address, the kernel would reject its routes.
func TestLinkAppears(t *testing.T) {
	s := newSystem(t)
	target := s.target(t)
	const link = claims.ManagementPort
	address := host.AddressKey{Link: link, Prefix: netip.MustParsePrefix("10.244.1.2/24")}
	route := host.Route{RouteKey: host.RouteKey{Table: 254, Prefix: netip.MustParsePrefix("10.244.0.0/16")}, Link: link,
		Via: netip.MustParseAddr("10.244.1.1")}
	want := host.State{
		Addresses: map[host.AddressKey]host.Address{address: {AddressKey: address}},
		Neighbors: map[host.NeighborKey]host.Neighbor{}, // they slow Apply down
		Routes:    map[host.RouteKey]host.Route{route.RouteKey: route},
	}
	for ip := netip.MustParseAddr("10.244.1.3"); len(want.Neighbors) < 240; ip = ip.Next() {
		k := host.NeighborKey{Link: link, IP: ip}
		want.Neighbors[k] = host.Neighbor{NeighborKey: k, MAC: cluster.MACFor(ip)}
	}
	s.wants(want)
	waited := 0
	for range 10 {
		s.ip(t, "link del "+link)
		appeared := make(chan struct{})
		go func() {
			defer close(appeared)
			s.ip(t, "link add "+link+" up type veth peer name pods")
		}()
		for ended := false; !ended; {
			select {
			case <-appeared:
				ended = true
			default:
			}
			err := target.Apply(t.Context(), host.Diff(want, host.State{}))
			var waiting *apply.Waiting
			switch {
			case errors.As(err, &waiting):
				waited++
			case err != nil:
				t.Fatal(err)
			}
		}
	}
	if waited == 0 {
		t.Error("no Apply met the missing link")
	}
	if have, err := target.Read(t.Context()); err != nil || len(have.Routes) == 0 {
		t.Errorf("%v: routes %v", err, have.Routes)
	}
}
