package apply_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"hairpin/apply"
	"hairpin/claims"
	"hairpin/datapath"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
)

// TestRoutesTurnToWhatIsThere checks that a route changes to the pod network after OVN's rows for
// it are in the switch, and away before OVN deletes them. While OVN cannot be changed, it does not
// change to it.
func TestRoutesTurnToWhatIsThere(t *testing.T) {
	var order []string
	with := func(link string, sets ...string) datapath.State {
		r := host.Route{RouteKey: host.RouteKey{Table: 254, Prefix: netip.MustParsePrefix("10.96.0.0/16")}, Link: link}
		s := datapath.State{NB: nb.State{}, Host: host.State{Routes: map[host.RouteKey]host.Route{r.RouteKey: r}}}
		for _, name := range sets {
			s.NB.Add(&nb.AddressSet{Name: name})
		}
		return s
	}
	k := &memory[host.State, host.Delta]{changed: make(chan struct{}, 1),
		with: func(d host.Delta, s host.State) host.State { return d.ApplyTo(s) }}
	k.look = noting(&order, "host")
	n := newNode(nil)
	n.nb.look = noting(&order, "ovn")
	p := apply.NewPass(apply.Targets{NB: syncing{n.nb, &order}, Host: k})
	run(t, p, with("br-ex"))
	n.nb.refuse = errors.New("OVN is away")
	inside := with(claims.ManagementPort, "port")
	if err := p.Run(t.Context(), inside); !errors.Is(err, apply.ErrWithheld) || !slices.Equal(order, []string{"host"}) {
		t.Errorf("without OVN: %v, changed %v", err, order)
	}
	n.nb.refuse = nil
	p.Retry()
	run(t, p, inside)
	run(t, p, with("br-ex"))
	if want := []string{"host", "ovn", "ovn is in the switch", "host", "host", "ovn"}; !slices.Equal(order, want) {
		t.Errorf("changed in the order %v, want %v", order, want)
	}
}

// syncing is a Target that records calls of Sync.
type syncing struct {
	apply.Target[nb.State, nb.Delta]
	order *[]string
}

func (s syncing) Sync(context.Context) error {
	*s.order = append(*s.order, "ovn is in the switch")
	return nil
}

// TestRoutesBehindAPortThatIsTurnedTo checks that a new route with a next hop behind svc-host is
// made with the route by which the host reaches that next hop. The kernel rejects it while the next
// hop is on the previous link, and then nothing else would change.
func TestRoutesBehindAPortThatIsTurnedTo(t *testing.T) {
	hop := netip.MustParseAddr("fd69::1")
	onLink := host.RouteKey{Table: 254, Prefix: netip.PrefixFrom(hop, 128)}
	behind := host.RouteKey{Table: 84999, Prefix: netip.MustParsePrefix("fd00:10:244::/48")}
	with := func(link string) datapath.State {
		routes := map[host.RouteKey]host.Route{onLink: {RouteKey: onLink, Link: link}}
		if link == claims.ServiceHost {
			routes[behind] = host.Route{RouteKey: behind, Link: link, Via: hop}
		}
		return datapath.State{NB: nb.State{}, Host: host.State{Routes: routes}}
	}
	k := &memory[host.State, host.Delta]{changed: make(chan struct{}, 1),
		with: func(d host.Delta, s host.State) host.State { return d.ApplyTo(s) }}
	k.look = func(bool) {
		if _, there := k.state.Routes[behind]; there && k.state.Routes[onLink].Link != claims.ServiceHost {
			t.Error("a route has a next hop on another link")
		}
	}
	p := apply.NewPass(apply.Targets{NB: syncing{newNode(func(*node, bool) {}).nb, new([]string)}, Host: k})
	run(t, p, with("br-ex"))
	run(t, p, with(claims.ServiceHost))
	if _, there := k.state.Routes[behind]; !there {
		t.Error("the route is missing")
	}
}
