package apply_test

import (
	"net/netip"
	"testing"

	"hairpin/apply"
	"hairpin/datapath"
	"hairpin/datapath/conn"
	"hairpin/datapath/nb"
)

// TestForgetsAtOnce starts an agent while an egress address is on another node, and this node still
// translates to it. A connection made after the first Read, and before the rules are deleted, must
// be deleted in the same Run.
func TestForgetsAtOnce(t *testing.T) {
	address := netip.MustParseAddr("10.10.10.33")
	c := &memory[conn.State, conn.Delta]{changed: make(chan struct{}, 1), look: func(bool) {},
		with: func(d conn.Delta, s conn.State) conn.State {
			out := conn.State{Egress: map[netip.Addr]conn.Egress{}}
			for a, e := range s.Egress {
				out.Egress[a] = e
			}
			for _, a := range d.LeftEgress {
				delete(out.Egress, a)
			}
			return out
		}}
	n := newNode(func(*node, bool) { c.state.AddSource(address) })
	rule := &nb.AddressSet{Name: "egressip_e_ip4"}
	n.nb.state = nb.State{}
	n.nb.state.Add(rule)
	want := datapath.State{NB: nb.State{},
		Conn: conn.State{Egress: map[netip.Addr]conn.Egress{address: {Elsewhere: true}}}}
	p := apply.NewPass(apply.Targets{NB: n.nb, Conn: c})
	if err := p.Run(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if n.nb.state = nil; len(c.state.Egress) > 0 {
		t.Errorf("after the first Run there are %v", c.state.Egress)
	}
	applies := p.Status()[1].Applies
	if err := p.Run(t.Context(), want); err != nil || p.Status()[1].Applies != applies {
		t.Errorf("it is forgotten again: %v, %v", p.Status(), err)
	}
}
