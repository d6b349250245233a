package walk

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/delta"
	"hairpin/walk/packet"
)

// translated makes node n1's host translate one of its ports to a cluster IP, for its own packets
// and for external ones.
func translated(w World, port uint16, to netip.AddrPort) *nft.Table {
	t := w.States["n1"].NFT[nft.Inet]
	t.Maps["ports"] = &nft.Map{Name: "ports", Family: cluster.FamilyOf(to.Addr()),
		Key: []nft.KeyField{nft.KeyProto, nft.KeyPort},
		Elements: delta.MapOf(map[nft.Element]nft.Target{{Protocol: cluster.TCP, Port: port}: {Addr: to,
			Owner: podOwner("why")}})}
	for _, hook := range []string{"prerouting", "output"} {
		t.Chains[hook] = &nft.Chain{Name: hook, Type: "nat", Hook: hook, Priority: -100,
			Rules: []nft.Rule{{Matches: []nft.Match{nft.DstIsLocal{}}, Do: nft.DNATMap{Map: "ports"}}}}
	}
	return t
}

func masquerades(t *nft.Table, out string, matches ...nft.Match) {
	t.Chains["masquerade"] = &nft.Chain{Name: "masquerade", Type: "nat", Hook: "postrouting", Priority: 100,
		Rules: []nft.Rule{{Matches: append([]nft.Match{nft.OutInterface{Name: out}}, matches...),
			Do: nft.Masquerade{}}}}
}

// An external packet passes the host's nft to the cluster IP and then the gateway router, as in the
// documents' local gateway mode: three translations, all reversed for the reply.
func TestThroughTheHost(t *testing.T) {
	w := byHand(2)
	translated(w, 30099, ap("10.96.0.12:80"))
	p := tcp("172.18.0.3:30099")
	p.Src = addr("172.18.0.100")
	tr := walk(t, w, Point{}, p)
	if v := tr.Verdict; !v.Answered || v.At != inPod(2, "pod%d") || v.Seen.Src != addr("100.64.0.3") {
		t.Errorf("%s", tr)
	}
	want := "tcp src=172.18.0.100 dst=172.18.0.3 sport=40000 dport=30099 src=10.96.0.12 dst=172.18.0.100 " +
		"sport=80 dport=40000"
	if !slices.ContainsFunc(tr.Forward, func(s packet.Step) bool { return s.Entry == want && s.Node == "n1" }) {
		t.Errorf("no entry %s\n%s", want, tr)
	}
	w.States["n1"].Host.Sysctls["net/ipv4/ip_forward"] = host.Sysctl{}
	if tr = walk(t, w, Point{}, p); tr.Verdict.Delivered ||
		!strings.Contains(tr.Verdict.Reason, "the kernel does not forward IPv4") {
		t.Errorf("%s", tr)
	}
}

// 127.0.0.1 leaves the host only with route_localnet and a masquerade; the reply to ::1 needs a
// local route.
func TestLocalhost(t *testing.T) {
	w := byHand(1)
	table := translated(w, 30099, ap("10.96.0.11:80"))
	if tr := walk(t, w, inHost(1), tcp("127.0.0.1:30099")); tr.Verdict.Delivered ||
		!strings.Contains(tr.Verdict.Reason, "does not send a packet from 127.0.0.1 through breth0") {
		t.Errorf("%s", tr)
	}
	masquerades(table, "breth0", nft.AddrIn{Prefix: prefix("127.0.0.0/8")})
	path := "net/ipv4/conf/breth0/route_localnet"
	w.States["n1"].Host.Sysctls[path] = host.Sysctl{Path: path, Value: "1"}
	tr := walk(t, w, inHost(1), tcp("127.0.0.1:30099"))
	if v := tr.Verdict; !v.Answered || v.Answer.Src != addr("127.0.0.1") || v.Answer.Dst != addr("127.0.0.1") {
		t.Errorf("%s", tr)
	}
	// The kernel uses the address in the next hop's network, whatever the route's src is
	// (inet_select_addr).
	if !strings.Contains(tr.String(), "source 127.0.0.1:40000 becomes 169.254.169.2:40000\n") {
		t.Errorf("%s", tr)
	}
	translated(w, 30099, ap("[fd00:10:96::11]:80"))
	if tr := walk(t, w, inHost(1), tcp("[::1]:30099")); tr.Verdict.Answered ||
		!strings.Contains(tr.Verdict.AnswerReason, "does not accept a packet for ::1 from breth0") {
		t.Errorf("%s", tr)
	}
	k := host.RouteKey{Table: host.LocalTable, Prefix: prefix("::1/128")}
	w.States["n1"].Host.Routes[k] = host.Route{RouteKey: k, Link: "breth0"}
	masquerades(table, "breth0", nft.AddrIn{Prefix: prefix("::1/128")})
	if tr := walk(t, w, inHost(1), tcp("[::1]:30099")); !tr.Verdict.Answered {
		t.Errorf("%s", tr)
	}
}

// A packet from a host to itself stays in the kernel; nft sees it at output and at input.
func TestWithinTheHost(t *testing.T) {
	w := byHand(1)
	tr := walk(t, w, inHost(1), tcp("172.18.0.3:8081"))
	if v := tr.Verdict; !v.Answered || v.At != inHost(1) || v.Seen.Src != addr("172.18.0.3") || len(tr.Forward) != 1 {
		t.Errorf("%s", tr)
	}
	w.States["n1"].NFT[nft.Inet].Chains["input"] = &nft.Chain{Name: "input", Type: "filter", Hook: "input",
		Rules: []nft.Rule{{Matches: []nft.Match{nft.InInterface{Name: "lo"},
			nft.DstPort{Protocol: cluster.TCP, Port: 8081}}, Do: nft.Drop{}}}}
	if tr = walk(t, w, inHost(1), tcp("172.18.0.3:8081")); tr.Verdict.Delivered ||
		tr.Verdict.Reason != "nft drops it on the way into the host" {
		t.Errorf("%s", tr)
	}
}

// TestNFT checks the meaning of nft matches and statements. The chain adds up marks: the packet has
// the mark of the rules that matched.
func TestNFT(t *testing.T) {
	for _, c := range []struct {
		name  string
		match nft.Match
		holds bool
	}{
		{"saddr", nft.AddrIn{Prefix: prefix("172.18.0.0/16")}, true},
		{"saddr not", nft.AddrIn{Prefix: prefix("172.18.0.0/16"), Not: true}, false},
		{"daddr", nft.AddrIn{Dst: true, Prefix: prefix("10.96.0.11/32")}, true},
		{"other family, even if not", nft.AddrIn{Prefix: prefix("::/0"), Not: true}, false},
		{"local", nft.DstIsLocal{}, false},
		{"protocol", nft.L4Proto{Protocol: cluster.UDP}, false},
		{"port", nft.DstPort{Protocol: cluster.TCP, Port: 80}, true},
		{"port of another protocol", nft.DstPort{Protocol: cluster.UDP, Port: 80}, false},
		{"out", nft.OutInterface{Name: "breth0"}, true},
		{"not out", nft.OutInterface{Name: "breth0", Not: true}, false},
		{"out by any rest", nft.OutInterface{Name: "breth*"}, true},
		{"out by another rest", nft.OutInterface{Name: "br-*"}, false},
		{"in, of an own packet", nft.InInterface{Name: "lo"}, false},
		{"mark", nft.MarkIs{Value: 4, Mask: 0xc}, true},
		{"set", nft.InSet{Set: "vips"}, true},
		{"set of the other family", nft.InSet{Set: "vips6"}, false},
	} {
		w := byHand(1)
		table := w.States["n1"].NFT[nft.Inet]
		key := []nft.KeyField{nft.KeyIPDst, nft.KeyProto, nft.KeyPort}
		table.Sets = map[string]*nft.Set{
			"vips": {Name: "vips", Key: key,
				Elements: delta.MapOf(map[nft.Element]cluster.Owner{{Addr: addr("10.96.0.11"), Protocol: cluster.TCP,
					Port: 80}: {}})},
			"vips6": {Name: "vips6", Key: []nft.KeyField{nft.KeyIP6Dst},
				Elements: delta.MapOf(map[nft.Element]cluster.Owner{{Addr: addr("10.96.0.11")}: {}})},
		}
		table.Chains["mark"] = &nft.Chain{Name: "mark", Type: "filter", Hook: "output", Rules: []nft.Rule{
			{Do: nft.SetMark{Value: 4}}, {Matches: []nft.Match{c.match}, Do: nft.SetMark{Value: 5}}}}
		tr := walk(t, w, inHost(1), tcp("10.96.0.11:80"))
		marked := slices.ContainsFunc(tr.Forward, func(s packet.Step) bool { return s.Did == "mark 0x5" })
		if marked != c.holds || !tr.Verdict.Answered {
			t.Errorf("%s: holds %v\n%s", c.name, marked, tr)
		}
	}
}

// An accept ends one chain, not the hook; a return ends the chain too.
func TestVerdicts(t *testing.T) {
	for _, first := range []nft.Statement{nft.Accept{}, nft.Return{}} {
		w := byHand(1)
		chains := w.States["n1"].NFT[nft.Inet].Chains
		chains["a"] = &nft.Chain{Name: "a", Type: "filter", Hook: "output", Priority: 0,
			Rules: []nft.Rule{{Do: first}, {Do: nft.Drop{}}}}
		if tr := walk(t, w, inHost(1), tcp("10.96.0.11:80")); !tr.Verdict.Delivered {
			t.Errorf("%T does not end the chain\n%s", first, tr)
		}
		chains["b"] = &nft.Chain{Name: "b", Type: "filter", Hook: "output", Priority: 1,
			Rules: []nft.Rule{{Do: nft.Drop{}}}}
		if tr := walk(t, w, inHost(1), tcp("10.96.0.11:80")); tr.Verdict.Delivered {
			t.Errorf("%T ends the hook\n%s", first, tr)
		}
	}
}

// TestSelectAddress checks which of a link's addresses the kernel uses.
func TestSelectAddress(t *testing.T) {
	w := New(byHand(1))
	n, err := w.node("n1")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ link, hop, dst, want string }{
		{"breth0", "172.18.0.1", "9.9.9.9", "172.18.0.3"},
		{"breth0", "169.254.169.4", "10.96.0.1", "169.254.169.2"},
		{"breth0", "9.9.9.9", "9.9.9.9", "172.18.0.3"},
		{"breth0", "fd69::4", "fd00:10:96::1", "fc00:f853:ccd::3"}, // fd69::2 is deprecated
		{"ovn-k8s-mp0", "10.244.1.1", "10.244.2.3", "10.244.1.2"},
	} {
		if got := n.host.SelectAddress(c.link, addr("%s", c.hop), addr("%s", c.dst)); got != addr("%s", c.want) {
			t.Errorf("%s via %s by %s: %s, not %s", c.dst, c.hop, c.link, got, c.want)
		}
	}
}

// With one external address in two Northbound databases, all walks take the same node.
func TestOwnerIsStable(t *testing.T) {
	w := byHand(2)
	for _, gr := range []string{"n1", "n2"} {
		w.States[gr].NB.Add(&nb.NAT{Router: "GR_" + gr, Type: nb.SNAT, External: addr("172.18.0.99"),
			Logical: prefix("10.244.9.9/32")})
	}
	p := tcp("172.18.0.99:80")
	p.Src = addr("172.18.0.100")
	nodes := map[string]bool{}
	for range 20 {
		tr, _ := New(w).Walk(Point{}, p) // nothing translates it: the packet loops
		nodes[tr.Forward[0].Node] = true
	}
	if len(nodes) != 1 {
		t.Errorf("the packet enters %v", slices.Sorted(maps.Keys(nodes)))
	}
}
