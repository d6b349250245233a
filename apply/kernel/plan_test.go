package kernel_test

import (
	"testing"

	"hairpin/apply"
	"hairpin/apply/applytest"
	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/plan"
	"hairpin/watch"
)

// TestTypedByHand checks that a printed State is a script that makes it, except for egress
// addresses: iproute2 of Debian 12 does not support an address's protocol.
func TestTypedByHand(t *testing.T) {
	s := newSystem(t)
	target := s.target(t)
	want := example(t)
	for k := range want.Addresses {
		if k.Link == "eth0.10" {
			delete(want.Addresses, k)
		}
	}
	s.wants(want)
	s.hand(host.Print(want))(t)
	if d := s.left(t, target); !d.Empty() {
		t.Errorf("typed by hand, this is missing:\n%s", d)
	}
}

// TestPlannedStates checks that the kernel accepts plan's States of the demo's nodes, from the
// Target and as a printed script. A new Target on it writes nothing.
func TestPlannedStates(t *testing.T) {
	snapshot, err := watch.ReadFiles("../../examples/demo", cluster.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range snapshot.Nodes {
		n.Gateway.OpenFlow = i > 0 // one node with OVN's load balancers
		s := newSystem(t)
		s.ip(t, "link add eth0 type veth peer name eth0p")
		s.ip(t, "link add svc-host up type veth peer name svc-hostp")
		state, _ := plan.Node(snapshot, n.Name)
		if len(state.Host.Routes) < 4 {
			t.Fatalf("%s: only %d routes planned", n.Name, len(state.Host.Routes))
		}
		for k, a := range state.Host.Addresses {
			if a.Borrowed {
				s.run(t, "ip", "addr", "replace", k.Prefix.String(), "dev", k.Link, "nodad")
			}
		}
		s.ip(t, "link set br-ex up")
		s.wants(state.Host)
		s.reach(t, s.target(t))
		pass := apply.NewPass(apply.Targets{Host: s.target(t)})
		for range 2 {
			applytest.Run(t, pass, state)
		}
		if st := pass.Status()[0]; st.Applies != 0 || st.Drift != 0 || !st.InSync {
			t.Errorf("%s: on an unchanged node, %+v", n.Name, st)
		}

		typed := newSystem(t)
		typed.ip(t, "link add eth0 type veth peer name eth0p")
		typed.ip(t, "link add svc-host up type veth peer name svc-hostp")
		typed.wants(state.Host)
		typed.hand(host.Print(state.Host))(t)
		if d := typed.left(t, typed.target(t)); !d.Empty() {
			t.Errorf("%s: typed by hand, this is missing:\n%s", n.Name, d)
		}
	}
}
