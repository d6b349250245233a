package apply_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"hairpin/apply"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/datapath/redirect"
)

// TestRedirectsToWhatIsThere checks that redirection begins after OVN has the Service, and ends
// before OVN loses it but after nft serves it. If neither redirected nor served, a packet would
// make a conntrack entry of the host that keeps its connection from both. While OVN cannot be
// changed, no new redirection begins.
func TestRedirectsToWhatIsThere(t *testing.T) {
	var order []string
	service := redirect.Service{Addr: netip.MustParseAddrPort("192.0.2.2:30080"), Protocol: cluster.TCP}
	r := &memory[redirect.State, redirect.Delta]{changed: make(chan struct{}, 1),
		with: func(d redirect.Delta, s redirect.State) redirect.State {
			return redirect.State{Programs: d.Programs.ApplyTo(s.Programs), Services: d.Services.ApplyTo(s.Services)}
		}}
	r.look = noting(&order, "redirect")
	n := newNode(nil)
	n.nb.look = noting(&order, "ovn")
	n.nft.look = noting(&order, "nft")
	with := datapath.State{NB: nb.State{}, Redirect: redirect.State{
		Programs: map[string]redirect.Program{"eth0": {Link: "eth0", Name: claims.ProgramRequest}},
		Services: map[redirect.Service]redirect.Path{service: {}},
	}}
	with.NB.Add(&nb.AddressSet{Name: "vip"})
	p := apply.NewPass(apply.Targets{NB: n.nb, NFT: n.nft, Redirect: r})
	n.nb.refuse = errors.New("OVN is away")
	if err := p.Run(t.Context(), with); !errors.Is(err, apply.ErrWithheld) || len(r.state.Services) > 0 {
		t.Errorf("without OVN: %v, redirected %v", err, r.state.Services)
	}
	n.nb.refuse = nil
	p.Retry()
	run(t, p, with)
	without := datapath.State{NB: nb.State{}, NFT: nft.State{nft.Inet: {Chains: map[string]*nft.Chain{}}}}
	run(t, p, without)
	if want := []string{"ovn", "redirect", "nft", "redirect", "ovn"}; !slices.Equal(order, want) {
		t.Errorf("changed in the order %v, want %v", order, want)
	}
}
