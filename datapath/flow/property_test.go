package flow

import (
	"bytes"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/datapath/flow/oxm"
	"hairpin/openflow"
)

func drawMAC(t *rapid.T) cluster.MAC {
	m := cluster.MAC(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "mac"))
	m[5] |= 1 // the zero MAC means none
	return m
}

func drawAddr(t *rapid.T, f cluster.Family) netip.Addr {
	n := 4
	if f == cluster.IPv6 {
		n = 16
	}
	a, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "address"))
	return a
}

func drawPrefix(t *rapid.T, f cluster.Family) netip.Prefix {
	if f == 0 || rapid.Bool().Draw(t, "any") {
		return netip.Prefix{}
	}
	a := drawAddr(t, f)
	p, _ := a.Prefix(rapid.IntRange(1, a.BitLen()).Draw(t, "bits"))
	return p
}

func drawPort(t *rapid.T) string {
	return rapid.SampledFrom([]string{Local, "eth0", "patch-br-ex_node-a-to-br-int", "7", "a # b", `q"x\`, "a,b", "x(y",
		"é z", "_", "a=b", "actions=drop"}).Draw(t, "port")
}

func drawOwner(t *rapid.T) cluster.Owner {
	return rapid.SampledFrom([]cluster.Owner{{}, {Kind: "Node", Name: "node-a"},
		{Kind: "Service", Namespace: "default", Name: "web"}}).Draw(t, "owner")
}

func drawMatch(t *rapid.T) Match {
	m := Match{
		Protocol: Protocol(rapid.IntRange(0, len(protocols)-1).Draw(t, "protocol")),
		PktMark:  rapid.Uint32().Draw(t, "pkt_mark"),
		CTMark:   rapid.Uint32().Draw(t, "ct_mark"),
		Group:    rapid.Uint32().Draw(t, "group"),
		Bucket:   rapid.Uint32().Draw(t, "bucket"),
		Profile:  rapid.Uint32().Draw(t, "profile"),
		ConjID:   rapid.Uint32().Draw(t, "conj_id"),
	}
	if rapid.Bool().Draw(t, "bits of ct_mark") {
		m.CTMarkMask = rapid.Uint32Range(1, 1<<32-2).Draw(t, "ct_mark's mask")
		m.CTMark &= m.CTMarkMask
	}
	family := m.Protocol.Family()
	has := func(name string) bool { return byName[name].field.form(&m, oxm.Value{}) != nil }
	m.Src, m.Dst = drawPrefix(t, family), drawPrefix(t, family)
	if rapid.Bool().Draw(t, "from a port") {
		m.InPort = drawPort(t)
	}
	m.Tagged = rapid.Bool().Draw(t, "tagged")
	if rapid.Bool().Draw(t, "with MACs") {
		m.EthSrc, m.EthDst = drawMAC(t), drawMAC(t)
	}
	m.CTState.Set = CTBits(rapid.Byte().Draw(t, "+"))
	m.CTState.Clear = CTBits(rapid.Byte().Draw(t, "-")) &^ m.CTState.Set
	if has("tp_src") {
		m.SrcPort, m.DstPort = rapid.Uint16().Draw(t, "tp_src"), rapid.Uint16().Draw(t, "tp_dst")
		if rapid.Bool().Draw(t, "range") {
			m.DstMask = 0xffff << rapid.IntRange(1, 15).Draw(t, "its size")
			m.DstPort &= m.DstMask
		}
	}
	if m.Protocol == TCP || m.Protocol == TCP6 {
		m.TCPFlags = rapid.SampledFrom([]string{"", SYN, NoSYN}).Draw(t, "tcp_flags")
	}
	if has("icmp_type") {
		m.ICMPType, m.ICMPCode = rapid.Uint16Range(0, 256).Draw(t, "icmp"), rapid.Uint16Range(0, 256).Draw(t, "code")
	}
	if m.Protocol == ICMP6 && rapid.Bool().Draw(t, "about a neighbour") {
		m.ICMPType, m.Target = rapid.SampledFrom([]uint16{136, 137}).Draw(t, "neighbour"), drawAddr(t, cluster.IPv6)
	}
	if has("arp_sha") {
		switch rapid.IntRange(0, 2).Draw(t, "link-layer address") {
		case 1:
			m.LinkAddr = drawMAC(t)
		case 2:
			m.NoLinkAddr = m.Protocol != ARP
		}
	}
	if has("nw_frag") {
		m.Fragment = rapid.SampledFrom([]string{"", "later", "not_later", "first", "no", "yes"}).Draw(t, "fragment")
		m.TTL = rapid.Byte().Draw(t, "time to live")
		if m.CTState.Set&CTTrk != 0 && rapid.Bool().Draw(t, "of a connection") {
			m.CTProtocol, m.CTDstPort = rapid.Uint8Min(1).Draw(t, "ct_nw_proto"),
				rapid.Uint16Min(1).Draw(t, "ct_tp_dst")
		}
	}
	if rapid.Bool().Draw(t, "by a tunnel") {
		m.Tunnel = drawTunnel(t)
	}
	return m
}

func drawCT(t *rapid.T, f cluster.Family) CT {
	c := CT{
		Commit: rapid.Bool().Draw(t, "commit"),
		Zone:   rapid.Uint16().Draw(t, "zone"),
		Table:  rapid.ByteMax(254).Draw(t, "ct table"),
	}
	if !c.Commit {
		c.NAT.Kind = NATKind(rapid.IntRange(0, 1).Draw(t, "nat"))
		return c
	}
	c.Mark = rapid.Uint32().Draw(t, "mark")
	if rapid.Bool().Draw(t, "bits") {
		c.MarkMask = rapid.Uint32Range(1, 1<<32-2).Draw(t, "mask")
		c.Mark &= c.MarkMask
	}
	c.EthSrc = c.Mark != 0 && rapid.Bool().Draw(t, "MAC")
	c.NAT.Kind = NATKind(rapid.IntRange(0, 3).Draw(t, "nat"))
	if c.NAT.Kind < NATSrc {
		return c
	}
	if c.NAT.Kind == NATSrc && rapid.Bool().Draw(t, "port alone") {
		return c
	}
	c.NAT.Addr = drawAddr(t, f)
	if rapid.Bool().Draw(t, "nat ports") {
		c.NAT.PortMin = rapid.Uint16Min(1).Draw(t, "first")
		c.NAT.PortMax = rapid.Uint16Min(c.NAT.PortMin).Draw(t, "last")
	}
	return c
}

func drawFlow(t *rapid.T) *Flow {
	f := &Flow{
		Key: Key{Table: rapid.Byte().Draw(t, "table"), Priority: rapid.Uint16().Draw(t, "priority"),
			Match: drawMatch(t)},
		Feature: rapid.Uint32().Draw(t, "feature"),
		Owner:   drawOwner(t),
	}
	if rapid.Bool().Draw(t, "drops") {
		f.Actions = []Action{Drop{}}
		return f
	}
	if f.Match.ConjID == 0 && rapid.Bool().Draw(t, "clause") {
		ids := rapid.SliceOfNDistinct(rapid.Uint32Min(1), 1, 3, rapid.ID).Draw(t, "conjunctions")
		for _, id := range ids {
			of := rapid.ByteRange(2, 64).Draw(t, "clauses")
			f.Actions = append(f.Actions, Conjunction{id, rapid.ByteRange(1, of).Draw(t, "clause"), of})
		}
		return f
	}
	kinds := 6
	if p := f.Match.Protocol; p.Family() != 0 && p != ARP {
		kinds = 7
	}
	for range rapid.IntRange(1, 4).Draw(t, "actions") {
		f.Actions = append(f.Actions, drawAction(t, kinds, f.Match.Protocol.Family()))
	}
	return f
}

func drawAction(t *rapid.T, kinds int, family cluster.Family) Action {
	switch rapid.IntRange(1, kinds).Draw(t, "kind") {
	case 1:
		return Output{drawPort(t)}
	case 2:
		switch rapid.IntRange(0, 6).Draw(t, "which") {
		case 0:
			return InPort{}
		case 1:
			return SetPktMark{rapid.Uint32().Draw(t, "mark")}
		case 2:
			return MarkLonger{rapid.Uint16().Draw(t, "length")}
		case 3:
			return ToGroup{rapid.Uint32Max(maxGroup).Draw(t, "group")}
		case 4:
			return SetTunnel{drawTunnel(t)}
		case 5:
			return SetProfile{rapid.Uint32Min(1).Draw(t, "profile")}
		case 6:
			return SetGroup{rapid.Uint32Range(1, maxGroup).Draw(t, "group")}
		}
		return Normal{}
	case 3:
		return SetEthDst{drawMAC(t)}
	case 4:
		if kinds > 6 && rapid.Bool().Draw(t, "address") {
			return SetSrc{drawAddr(t, family)}
		}
		if kinds > 6 && rapid.Bool().Draw(t, "time to live") {
			return SetTTL{rapid.ByteMin(1).Draw(t, "its time")}
		}
		return SetEthSrc{drawMAC(t)}
	case 5:
		if rapid.Bool().Draw(t, "MAC by ct") {
			return SetEthDstByCT{}
		}
		return MoveEthDstToSrc{}
	case 6:
		return Resubmit{rapid.Byte().Draw(t, "resubmit")}
	}
	if rapid.Bool().Draw(t, "learns") {
		return Learn{
			Table: rapid.Byte().Draw(t, "table"), Family: family, VariantBits: rapid.Uint8Max(31).Draw(t, "ways"),
			Client:  rapid.Uint32().Draw(t, "client"),
			Timeout: rapid.Uint16Min(1).Draw(t, "timeout"), Limit: rapid.Uint32Min(1).Draw(t, "limit"),
		}
	}
	return drawCT(t, family)
}

func drawTunnel(t *rapid.T) Tunnel {
	family := rapid.SampledFrom([]cluster.Family{cluster.IPv4, cluster.IPv6}).Draw(t, "tunnel's family")
	return Tunnel{Key: rapid.Uint32Range(1, 1<<24-1).Draw(t, "key"), Ports: rapid.Uint32Min(1).Draw(t, "ports"),
		Peer: rapid.Custom(func(t *rapid.T) netip.Addr { return drawAddr(t, family) }).
			Filter(func(a netip.Addr) bool { return !a.IsUnspecified() }).Draw(t, "peer")}
}

func drawGroup(t *rapid.T) *Group {
	g := &Group{GroupKey: GroupKey{ID: rapid.Uint32Max(maxGroup).Draw(t, "group")}, Owner: drawOwner(t)}
	g.Hashed = rapid.SampledFrom([]Protocol{Any, TCP, TCP6, UDP, UDP6, SCTP, SCTP6}).Draw(t, "hashed")
	notes := rapid.Bool().Draw(t, "notes")
	ids := rapid.SliceOfNDistinct(rapid.Uint32Range(1, maxGroup), 1, 3, rapid.ID).Draw(t, "buckets")
	slices.Sort(ids)
	family := rapid.SampledFrom([]cluster.Family{cluster.IPv4, cluster.IPv6}).Draw(t, "family")
	for _, id := range ids {
		if notes {
			g.Buckets = append(g.Buckets, Bucket{ID: id, Next: rapid.ByteMin(1).Draw(t, "next")})
			continue
		}
		c := CT{Commit: true, Zone: rapid.Uint16().Draw(t, "zone"), Table: rapid.ByteMax(254).Draw(t, "ct table"),
			NAT: NAT{Kind: NATDst, Addr: drawAddr(t, family)}}
		c.NAT.PortMin = rapid.Uint16().Draw(t, "port")
		c.NAT.PortMax = c.NAT.PortMin
		g.Buckets = append(g.Buckets, Bucket{ID: id, CT: c})
	}
	return g
}

// TestFlowsOnTheWay checks that a flow is the same after it was printed, parsed, encoded, decoded
// and printed again, and a group after it was encoded and decoded.
func TestFlowsOnTheWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bridge := rapid.SampledFrom([]string{"", "", "br-svc", "b s"})
		for range rapid.IntRange(0, 5).Draw(t, "flows") {
			f := drawFlow(t)
			f.Bridge = bridge.Draw(t, "flow's bridge")
			if err := f.Check(); err != nil {
				t.Fatalf("Check refuses a flow that is fine: %v", err)
			}
			text := string(AppendOwner(f.Append(nil), f.Owner))
			got, err := ParseFlow(text)
			if got != nil {
				got.Bridge = f.Bridge // which no word tells
			}
			if err != nil || !reflect.DeepEqual(got, f) {
				t.Fatalf("%s\nis read as %+v, %v", text, got, err)
			}
			number := map[string]string{}
			numbered := f.WithPorts(func(name string) string {
				number[name] = strconv.Itoa(100 + len(name))
				return number[name]
			})
			e := numbered.Encode()
			back, known := Decode(&openflow.InstalledFlow{Flow: e})
			if back.Bridge = f.Bridge; !known || !back.Equal(numbered) || back.String() != numbered.String() {
				t.Fatalf("%s\nis decoded as\n%s (%t)", numbered, back, known)
			}
			if again := back.Encode(); !reflect.DeepEqual(again, e) {
				t.Fatalf("%s\nis encoded as %x, then as %x", numbered, e, again)
			}
		}
		for range rapid.IntRange(0, 2).Draw(t, "groups") {
			g := drawGroup(t)
			g.Bridge = bridge.Draw(t, "group's bridge")
			if err := g.Check(); err != nil {
				t.Fatalf("Check refuses a group that is fine: %v", err)
			}
			if back := DecodeGroup(g.Encode(), g.Bridge); !back.Equal(g) || back.String() != g.String() {
				t.Fatalf("%s\nis decoded as\n%s", g, back)
			}
		}
	})
}

// TestDecodeOfDamage checks that whatever a switch sends is read as something that encodes to the
// same bytes, or as unknown.
func TestDecodeOfDamage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFlow(t).WithPorts(func(string) string { return "7" })
		e := f.Encode()
		if n := len(e.Actions); n > 0 {
			e.Actions[rapid.IntRange(0, n-1).Draw(t, "where")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		}
		e.Match[rapid.IntRange(0, len(e.Match)-1).Draw(t, "where")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		e.Actions = e.Actions[:rapid.IntRange(0, len(e.Actions)).Draw(t, "size")]
		got, known := Decode(&openflow.InstalledFlow{Flow: e})
		again := got.Encode()
		if _, unknown := got.unknown(); !unknown && !bytes.Equal(again.Actions, e.Actions) {
			t.Fatalf("%x is decoded as %s, encoded as %x", e.Actions, got, again.Actions)
		}
		if a, b := openflow.Content(again.Match), openflow.Content(e.Match); known && len(a) != len(b) {
			t.Fatalf("%d %x is decoded as %s, encoded as %d %x", len(b), b, got, len(a), a)
		}
	})
}

func TestWithPorts(t *testing.T) {
	f, err := ParseFlow(`priority=1,in_port=eth0 actions=output:"a-b",LOCAL,NORMAL`)
	if err != nil {
		t.Fatal(err)
	}
	before := f.String()
	if got := f.Ports(); !slices.Equal(got, []string{"eth0", "a-b"}) {
		t.Fatalf("ports %q", got)
	}
	numbers := map[string]string{"eth0": "1", "a-b": "2"}
	g := f.WithPorts(func(name string) string { return numbers[name] })
	if want := `cookie=0xdeff105,table=0,priority=1,in_port=1 actions=output:2,LOCAL,NORMAL`; g.String() != want {
		t.Fatalf("got %s", g)
	}
	if f.String() != before {
		t.Fatalf("the flow itself is now %s", f)
	}
}

func TestCheckRejectsWhatTheSwitchAlters(t *testing.T) {
	p := netip.MustParsePrefix
	a := netip.MustParseAddr
	ip := Match{Protocol: IP}
	for name, f := range map[string]Flow{
		"no actions":         {},
		"drop and more":      {Actions: []Action{Drop{}, Normal{}}},
		"unmasked":           {Key: Key{Match: Match{Protocol: IP, Src: p("10.0.0.1/8")}}, Actions: []Action{Drop{}}},
		"matches everything": {Key: Key{Match: Match{Protocol: IP, Src: p("0.0.0.0/0")}}, Actions: []Action{Drop{}}},
		"other family": {Key: Key{Match: Match{Protocol: TCP6, Dst: p("10.0.0.1/32")}},
			Actions: []Action{Drop{}}},
		"no protocol":          {Key: Key{Match: Match{Dst: p("10.0.0.1/32")}}, Actions: []Action{Drop{}}},
		"port of no one":       {Key: Key{Match: Match{Protocol: IP, DstPort: 80}}, Actions: []Action{Drop{}}},
		"type of no one":       {Key: Key{Match: Match{Protocol: UDP, ICMPType: 9}}, Actions: []Action{Drop{}}},
		"code of no one":       {Key: Key{Match: Match{Protocol: UDP, ICMPCode: 9}}, Actions: []Action{Drop{}}},
		"code too large":       {Key: Key{Match: Match{Protocol: ICMP, ICMPCode: 257}}, Actions: []Action{Drop{}}},
		"a tunnel's key alone": {Key: Key{Match: Match{Tunnel: Tunnel{Key: 1}}}, Actions: []Action{Drop{}}},
		"a tunnel to nobody":   {Actions: []Action{SetTunnel{Tunnel{Key: 1, Ports: 1}}, Output{"p"}}},
		"fragments of ARP":     {Key: Key{Match: Match{Protocol: ARP, Fragment: "later"}}, Actions: []Action{Drop{}}},
		"target of a ping": {Key: Key{Match: Match{Protocol: ICMP6, ICMPType: 129,
			Target: netip.MustParseAddr("fd00::1")}}, Actions: []Action{Drop{}}},
		"odd fragment":      {Key: Key{Match: Match{Protocol: IP, Fragment: "some"}}, Actions: []Action{Drop{}}},
		"contradiction":     {Key: Key{Match: Match{CTState: CTState{CTEst, CTEst}}}, Actions: []Action{Drop{}}},
		"reserved port":     {Key: Key{Match: Match{InPort: "flood"}}, Actions: []Action{Drop{}}},
		"local":             {Actions: []Action{Output{"local"}}},
		"output to nothing": {Actions: []Action{Output{}}},
		"ct of anything":    {Actions: []Action{CT{Table: 1}}},
		"ct of ARP":         {Key: Key{Match: Match{Protocol: ARP}}, Actions: []Action{CT{Table: 1}}},
		"nat, no commit": {Key: Key{Match: ip},
			Actions: []Action{CT{NAT: NAT{Kind: NATSrc, Addr: a("1.2.3.4")}}}},
		"ct to table 255": {Key: Key{Match: ip}, Actions: []Action{CT{Table: 255}}},
		"mark, no commit": {Key: Key{Match: ip}, Actions: []Action{CT{Mark: 1}}},
		"nat to IPv6": {Key: Key{Match: ip},
			Actions: []Action{CT{Commit: true, NAT: NAT{Kind: NATSrc, Addr: a("::1")}}}},
		"nat to nothing": {Key: Key{Match: ip}, Actions: []Action{CT{Commit: true, NAT: NAT{Kind: NATDst}}}},
		"address, no nat": {Key: Key{Match: ip},
			Actions: []Action{CT{Commit: true, NAT: NAT{Kind: NATUndo, Addr: a("1.2.3.4")}}}},
		"group of no one":   {Actions: []Action{ToGroup{maxGroup + 1}}},
		"group 0":           {Actions: []Action{SetGroup{}}},
		"profile 0":         {Actions: []Action{SetProfile{}}},
		"clause 0":          {Actions: []Action{Conjunction{7, 0, 2}}},
		"clause 3 of 2":     {Actions: []Action{Conjunction{7, 3, 2}}},
		"one clause":        {Actions: []Action{Conjunction{7, 1, 1}}},
		"two clauses":       {Actions: []Action{Conjunction{7, 1, 2}, Conjunction{7, 2, 2}}},
		"clause and drop":   {Actions: []Action{Conjunction{7, 1, 2}, Resubmit{1}}},
		"too many clauses":  {Actions: slices.Repeat([]Action{Conjunction{7, 1, 2}}, 2001)},
		"clause of conj_id": {Key: Key{Match: Match{ConjID: 7}}, Actions: []Action{Conjunction{8, 1, 2}}},
		"no time": {Key: Key{Match: ip},
			Actions: []Action{Learn{Table: 25, Family: cluster.IPv4, Limit: 1}}},
		"no limit": {Key: Key{Match: ip},
			Actions: []Action{Learn{Table: 25, Family: cluster.IPv4, Timeout: 1}}},
		"learns IPv6": {Key: Key{Match: ip},
			Actions: []Action{Learn{Table: 25, Family: cluster.IPv6, Timeout: 1, Limit: 1}}},
		"half a port range": {Key: Key{Match: ip},
			Actions: []Action{CT{Commit: true, NAT: NAT{Kind: NATSrc, Addr: a("1.2.3.4"), PortMin: 5}}}},
	} {
		if err := f.Check(); err == nil {
			t.Errorf("%s: %s passes", name, &f)
		} else if !strings.Contains(err.Error(), f.Key.String()) {
			t.Errorf("%s: %v does not name the flow", name, err)
		}
	}
}

// TestActionWords checks the words of each action, and that a flow may have it.
func TestActionWords(t *testing.T) {
	tried := map[reflect.Type]bool{reflect.TypeFor[UnknownActions](): true}
	for word, a := range map[string]Action{
		"output:eth0": Output{"eth0"}, "IN_PORT": InPort{}, "NORMAL": Normal{}, "drop": Drop{},
		"set_field:2->nw_ttl": SetTTL{2}, "move:NXM_OF_ETH_DST[]->NXM_OF_ETH_SRC[]": MoveEthDstToSrc{},
		"move:NXM_NX_CT_LABEL[0..47]->NXM_OF_ETH_DST[]": SetEthDstByCT{},
		"check_pkt_larger(1414)->NXM_NX_PKT_MARK[0]":    MarkLonger{1414}, "resubmit(,4)": Resubmit{4},
		"group:7":             ToGroup{7},
		"set_field:0x7->reg6": SetGroup{7},
		"set_field:0x7->reg5": SetProfile{7},
		"conjunction(7,1/2)":  Conjunction{7, 1, 2},
		"learn(table=25,idle_timeout=10800,delete_learned,cookie=0x40dee2a30,limit=9,eth_type=0x800,NXM_NX_REG6[2..31],NXM_OF_IP_SRC[],load:NXM_NX_REG7[]->NXM_NX_REG7[])": Learn{
			Table: 25, Family: cluster.IPv4, VariantBits: 2, Client: 4, Timeout: 10800, Limit: 9},
		"set_field:02:00:00:00:00:00->eth_dst": SetEthDst{cluster.MAC{2}},
		"set_field:02:00:00:00:00:00->eth_src": SetEthSrc{cluster.MAC{2}},
		"set_field:169.254.169.2->ip_src":      SetSrc{netip.MustParseAddr("169.254.169.2")},
		"ct(commit)":                           CT{Commit: true}, "set_field:0x10000->pkt_mark": SetPktMark{0x10000},
		"set_field:0xff0003->tun_id,set_field:0x10002->tun_metadata0,set_field:172.18.0.4->tun_dst": SetTunnel{Tunnel{Key: 0xff0003, Ports: 1<<16 | 2, Peer: netip.MustParseAddr("172.18.0.4")}},
	} {
		if got := string(appendAction(nil, a)); got != word {
			t.Errorf("%T prints %s", a, got)
		}
		f := Flow{Key: Key{Match: Match{Protocol: IP}}, Actions: []Action{a}}
		if err := f.Check(); err != nil {
			t.Error(err)
		}
		if got, rest := parseAction(word); got != a || rest != "" {
			t.Errorf("%s is read as %v", word, got)
		}
		tried[reflect.TypeOf(a)] = true
	}
	for _, a := range Actions() {
		if !tried[reflect.TypeOf(a)] {
			t.Errorf("%T was not tried", a)
		}
	}
}

func TestCheckOfGroups(t *testing.T) {
	to := func(id uint32, a string) Bucket {
		return Bucket{ID: id, CT: CT{Commit: true, Table: 30, NAT: NAT{Kind: NATDst, Addr: netip.MustParseAddr(a)}}}
	}
	many := &Group{}
	for i := range uint32(MaxBuckets + 1) {
		many.Buckets = append(many.Buckets, to(i, "10.0.0.1"))
	}
	for name, g := range map[string]*Group{
		"empty":           {},
		"too large":       many,
		"reserved":        {GroupKey: GroupKey{ID: maxGroup + 1}, Buckets: []Bucket{to(1, "10.0.0.1")}},
		"reserved bucket": {Buckets: []Bucket{to(maxGroup+1, "10.0.0.1")}},
		"twice":           {Buckets: []Bucket{to(1, "10.0.0.1"), to(1, "10.0.0.2")}},
		"two families":    {Buckets: []Bucket{to(1, "10.0.0.1"), to(2, "fd00::1")}},
		"no address":      {Buckets: []Bucket{{ID: 1, CT: CT{Commit: true, NAT: NAT{Kind: NATDst}}}}},
		"notes nothing":   {Hashed: TCP, Buckets: []Bucket{{Next: 26}}},
		"notes and more": {Hashed: TCP,
			Buckets: []Bucket{{ID: 1, Next: 26, CT: CT{Commit: true, NAT: NAT{Kind: NATDst}}}}},
	} {
		if err := g.Check(); err == nil {
			t.Errorf("%s: %s passes", name, g)
		}
	}
}

// A flow of an administrator or another program may have nat flags that Hairpin never sets, such as
// persistent (1<<2).
func TestDecodeOfOtherNATFlags(t *testing.T) {
	nat := openflow.NAT{Flags: openflow.NATSrc | 1<<2}.Append(nil)
	e := openflow.Flow{Table: 1, Priority: 7, Match: openflow.AppendMatch(nil, func(b []byte) []byte { return b }),
		Actions: openflow.CT{Commit: true, Zone: 9, Nested: nat}.Append(nil)}
	got, _ := Decode(&openflow.InstalledFlow{Flow: e})
	if _, unknown := got.unknown(); !unknown {
		t.Errorf("decoded as %s", got)
	}
}

// A flow of ours that another program changed may set a tunnel with larger values than SetTunnel
// has. It must not be read as a wanted flow.
func TestDecodeOfLargerTunnelValues(t *testing.T) {
	tunnel := func(key uint64, ports []byte) []byte {
		b := openflow.SetField(nil, oxm.Exactly(key).Encode(nil, openflow.TunID))
		header := openflow.TunMetadata0&^0xff | openflow.Field(len(ports))
		b = openflow.SetField(b, header.Append(nil, ports, nil))
		peer := netip.MustParseAddr("172.18.0.4")
		return openflow.SetField(b, oxm.OfAddr(peer, 32).Encode(nil, openflow.TunDst))
	}
	for _, c := range []struct {
		name  string
		key   uint64
		ports []byte
		known bool
	}{
		{"wanted", 5, []byte{0, 1, 0, 2}, true},
		{"without leading zeros", 5, []byte{1, 0, 2}, true},
		{"a key of more than 32 bits", 1<<32 | 5, []byte{0, 1, 0, 2}, false},
		{"an option of 8 bytes", 5, []byte{0, 0, 0, 9, 0, 1, 0, 2}, false},
		{"an option of 20 bytes", 5, make([]byte, 20), false},
	} {
		if list, known := decodeActions(tunnel(c.key, c.ports)); known != c.known {
			t.Errorf("%s: %v, known %v", c.name, list, known)
		}
	}
}
