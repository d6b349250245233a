package datapath

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nb/nbtest"
	"hairpin/datapath/nft"
	"hairpin/datapath/ovs"
	"hairpin/delta"
)

func owner(name string) cluster.Owner {
	return cluster.Owner{Kind: "Service", Namespace: "default", Name: name}
}

func TestMergeKeepsTheFirst(t *testing.T) {
	a, b := owner("a"), owner("b")
	set := func(o cluster.Owner, ip string) nb.State {
		s := nb.State{}
		s.Add(&nb.AddressSet{Name: "x", Addresses: []netip.Prefix{netip.MustParsePrefix(ip)}, Owner: o},
			&nb.Group{Name: o.Name, Owner: o})
		return s
	}
	big := nb.State{}
	for i := range 10 {
		big.Add(&nb.Group{Name: fmt.Sprint(i), Owner: b})
	}
	maps.Copy(big, set(b, "10.0.0.2/32"))
	for name, parts := range map[string][]State{
		"small before big":  {{NB: set(a, "10.0.0.1/32")}, {NB: big}},
		"big last of three": {{}, {NB: set(a, "10.0.0.1/32")}, {NB: big}},
	} {
		before := maps.Clone(big)
		got, conflicts := Merge(parts...)
		want := Conflict{Key: `Address_Set "x"`, Kept: a, Lost: b}
		if len(conflicts) != 1 || conflicts[0] != want {
			t.Errorf("%s: conflicts are %v, want %v", name, conflicts, want)
		}
		x := got.NB[nb.Key{Table: nb.TableAddressSet, Name: "x"}].(*nb.AddressSet)
		if x.Owner != a || len(got.NB) != 13 {
			t.Errorf("%s: %d rows, x is of %v", name, len(got.NB), x.Owner)
		}
		if !maps.Equal(big, before) {
			t.Errorf("%s: Merge changed a part", name)
		}
	}
	_, conflicts := Merge(State{NB: big}, State{NB: set(a, "10.0.0.1/32")})
	if want := (Conflict{Key: `Address_Set "x"`, Kept: b, Lost: a}); len(conflicts) != 1 || conflicts[0] != want {
		t.Errorf("big before small: %v", conflicts)
	}
}

func TestSameValueOfTwoOwnersIsNoConflict(t *testing.T) {
	part := func(o cluster.Owner) State {
		s := State{NB: nb.State{}, NFT: nft.State{nft.Inet: {
			Maps: map[string]*nft.Map{"m": {Name: "m",
				Elements: delta.MapOf(map[nft.Element]nft.Target{
					{Port: 80}: {Addr: netip.MustParseAddrPort("10.0.0.1:80"), Owner: o},
				})}},
			Sets: map[string]*nft.Set{"s": {Name: "s",
				Elements: delta.MapOf(map[nft.Element]cluster.Owner{{Port: 80}: o})}},
		}}}
		s.NB.Add(&nb.Group{Name: "g", Owner: o})
		f := &flow.Flow{Key: flow.Key{Table: 1, Priority: 2}, Actions: []flow.Action{flow.Normal{}}, Owner: o}
		s.Bridge = ovs.State{Bridge: "br-ex", Settings: map[string]string{"k": "v"},
			Flows: delta.MapOf(map[flow.ID]*flow.Flow{f.ID(): f})}
		k := host.AddressKey{Link: "br-ex", Prefix: netip.MustParsePrefix("10.0.0.1/32")}
		s.Host = host.State{Addresses: map[host.AddressKey]host.Address{k: {AddressKey: k, Owner: o}},
			Rules: map[host.Rule]cluster.Owner{{Priority: 5999}: o}}
		return s
	}
	got, conflicts := Merge(part(owner("a")), part(owner("b")))
	if len(conflicts) != 0 {
		t.Fatalf("conflicts: %v", conflicts)
	}
	if len(got.NB) != 1 || got.Bridge.Flows.Len() != 1 || len(got.Host.Addresses) != 1 ||
		got.NFT[nft.Inet].Maps["m"].Elements.Len() != 1 || got.Bridge.Bridge != "br-ex" {
		t.Fatalf("merged: %+v", got)
	}
}

func TestConflictsOfEverySystem(t *testing.T) {
	part := func(o cluster.Owner, n int) State {
		ip := netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})
		f := &flow.Flow{Key: flow.Key{Table: 1}, Feature: uint32(n), Actions: []flow.Action{flow.Normal{}}, Owner: o}
		r := host.RouteKey{Table: 254, Prefix: netip.MustParsePrefix("10.0.0.0/8")}
		g := &flow.Group{GroupKey: flow.GroupKey{Bridge: "s", ID: 1}, Hashed: flow.Protocol(n), Owner: o}
		a := host.AddressKey{Link: "l", Prefix: netip.MustParsePrefix("10.0.0.1/32")}
		nk := host.NeighborKey{Link: "l", IP: netip.MustParseAddr("10.0.0.1")}
		return State{
			Bridge: ovs.State{Bridge: fmt.Sprintf("br%d", n), Settings: map[string]string{"k": fmt.Sprint(n)},
				Flows:           delta.MapOf(map[flow.ID]*flow.Flow{f.ID(): f}),
				Bridges:         map[string]ovs.Bridge{"s": {Userspace: n == 1, Owner: o}},
				Groups:          delta.MapOf(map[flow.GroupKey]*flow.Group{g.GroupKey: g}),
				Ports:           map[string]ovs.Port{"p": {MTU: n, Owner: o}},
				TunnelNeighbors: map[netip.Addr]cluster.MAC{{}: {byte(n)}}},
			NFT: nft.State{nft.Inet: {
				Chains: map[string]*nft.Chain{"c": {Name: "c", Priority: n, Owner: o}},
				Maps: map[string]*nft.Map{
					"m": {Elements: delta.MapOf(map[nft.Element]nft.Target{{Port: 80}: {Addr: netip.AddrPortFrom(ip,
						80), Owner: o}})},
					"t": {Family: cluster.Family(n)},
				},
				Sets: map[string]*nft.Set{"s": {Key: make([]nft.KeyField, n)}},
			}},
			Host: host.State{
				Links:     map[string]host.Link{"l": {MTU: n, Owner: o}},
				Routes:    map[host.RouteKey]host.Route{r: {RouteKey: r, Via: ip, Owner: o}},
				Addresses: map[host.AddressKey]host.Address{a: {AddressKey: a, Deprecated: n == 1, Owner: o}},
				Neighbors: map[host.NeighborKey]host.Neighbor{nk: {NeighborKey: nk, MAC: cluster.MAC{byte(n)},
					Owner: o}},
				Sysctls: map[string]host.Sysctl{"net/x": {Value: fmt.Sprint(n), Owner: o}},
			},
		}
	}
	_, conflicts := Merge(part(owner("a"), 1), part(owner("b"), 2))
	var keys []string
	for _, c := range conflicts {
		keys = append(keys, c.Key)
		if (c.Kept != cluster.Owner{} && c.Kept != owner("a")) || (c.Lost != cluster.Owner{} && c.Lost != owner("b")) {
			t.Errorf("%v", c)
		}
	}
	if len(keys) != 16 {
		t.Errorf("%d conflicts, want 16: %q", len(keys), keys)
	}
}

func TestMergeIsAFoldFromTheLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gen := nbtest.States(false)
		parts := []State{{NB: gen.Draw(t, "a")}, {NB: gen.Draw(t, "b")}, {NB: gen.Draw(t, "c")}}
		want := nb.State{}
		for _, p := range parts {
			for k, r := range p.NB {
				if want[k] == nil {
					want[k] = r
				}
			}
		}
		if got, _ := Merge(parts...); !maps.Equal(got.NB, want) {
			t.Fatalf("merged %s\nwant %s", nb.Print(got.NB), nb.Print(want))
		}
	})
}

func BenchmarkMerge20000(b *testing.B) {
	big, small := nb.State{}, nb.State{}
	for i := range 20000 {
		big.Add(&nb.LoadBalancer{Name: fmt.Sprintf("default/web-%d:http/tcp/IPv4", i)})
	}
	for i := range 500 {
		small.Add(&nb.SwitchPort{Name: fmt.Sprintf("default_pod-%d", i)})
	}
	for b.Loop() {
		Merge(State{NB: small}, State{NB: big}, State{})
	}
}
