package knft_test

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"hairpin/apply/inside/insidetest"
	"hairpin/apply/knft"
	"hairpin/cluster"
	"hairpin/datapath/nft"
	"hairpin/datapath/nft/nfttest"
	"hairpin/delta"
)

// noScripts returns the same system with an nft that refuses to run scripts, except for the probes.
func (s system) noScripts() system {
	return system{s.ns, slices.Concat([]string{"sh", "-c", `[ "$1" != -f ] || exit 9; exec ` +
		strings.Join(s.nft, " ") + ` "$@"`, "nft"})}
}

// raw returns the kernel's elements of Hairpin's tables, as nft prints the kernel's messages. It
// omits the element before the first range of a set, which says that a range ends at address 0.
func (s system) raw(t testing.TB) string {
	t.Helper()
	var out []string
	set := ""
	for line := range strings.Lines(s.run(t, "",
		slices.Concat(s.nft, []string{"--debug=netlink", "list", "ruleset"})...)) {
		switch {
		case strings.Contains(line, " @"):
			set = strings.TrimSpace(line)
		case strings.HasPrefix(line, "\telement ") && !beforeRanges.MatchString(line):
			out = append(out, set+strings.TrimRight(line, "\n"))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

var beforeRanges = regexp.MustCompile(`element (00000000 )+ : 1 \[end\]`)

// twins are two namespaces with the same tables.
type twins struct {
	byNetlink, byNFT system
	target           *knft.Target // on the first, without scripts
}

func newTwins(t testing.TB, s system) *twins {
	return &twins{s, system{insidetest.NetNS(t), s.nft}, s.noScripts().target(t)}
}

// change makes the same changes by netlink in one and by a script in the other, and compares.
func (w *twins) change(t testing.TB, to, from nft.State) {
	t.Helper()
	d := nft.Diff(to, from)
	if !d.OnlyElements() {
		t.Fatalf("not only elements differ:\n%s", d)
	}
	if err := w.target.Apply(t.Context(), d); err != nil {
		t.Fatalf("%v\n%s", err, d)
	}
	w.byNFT.hand(t, d.String())
	w.same(t, to)
}

func (w *twins) same(t testing.TB, want nft.State) {
	t.Helper()
	have, err := w.target.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := nft.Diff(want, have); !d.Empty() {
		t.Fatalf("read back, it lacks\n%s", d)
	}
	if d := nft.Diff(have, want); !d.Empty() {
		t.Fatalf("read back, it has too much\n%s", d)
	}
	elements := 0
	for _, table := range want {
		for _, m := range table.Maps {
			elements += m.Elements.Len()
		}
	}
	if a, b := w.byNetlink.raw(t), w.byNFT.raw(t); a != b || strings.Count(a, "\n")+1 < elements {
		t.Fatalf("by netlink the kernel has\n%s\nby nft it has\n%s", a, b)
	}
}

// TestElementsAsByNFT checks that elements written by netlink equal those that nft writes, in the
// kernel and read back, and that nft can change them.
func TestElementsAsByNFT(t *testing.T) {
	each(t, func(t *testing.T, s system) {
		w := newTwins(t, s)
		checks := flag.Lookup("rapid.checks")
		if checks.Value.String() == checks.DefValue {
			_ = checks.Value.Set("15") // the value is a number
			defer func() { _ = checks.Value.Set(checks.DefValue) }()
		}
		rapid.Check(t, func(r *rapid.T) {
			from := nfttest.States().Draw(r, "from")
			for _, s := range []system{w.byNetlink, w.byNFT} {
				s.hand(t, "flush ruleset\n"+nft.Print(from))
			}
			to := nfttest.Elements(r, from)
			w.change(t, to, from)
			last := nfttest.Elements(r, to)
			w.byNetlink.hand(t, nft.Diff(last, to).String())
			w.byNFT.hand(t, nft.Diff(last, to).String())
			w.same(t, last)
		})
	})
}

// TestElementsAtTheEdges tests ranges at both ends of the address space, and more elements with the
// longest comments than fit in a message and a socket's buffer.
func TestElementsAtTheEdges(t *testing.T) {
	each(t, func(t *testing.T, s system) {
		w := newTwins(t, s)
		empty := func() nft.State {
			return nft.State{nft.Inet: &nft.Table{Chains: map[string]*nft.Chain{},
				Maps: map[string]*nft.Map{"many": {Name: "many", Family: cluster.IPv6,
					Key: []nft.KeyField{nft.KeyIP6Dst, nft.KeyProto, nft.KeyPort, nft.KeyIP6Slot}}},
				Sets: map[string]*nft.Set{
					"four":  {Name: "four", Key: []nft.KeyField{nft.KeyIPSrc}},
					"six":   {Name: "six", Key: []nft.KeyField{nft.KeyIP6Src}},
					"mixed": {Name: "mixed", Key: []nft.KeyField{nft.KeyIPDst, nft.KeyPort, nft.KeyIPSrc}},
				}}}
		}
		first := empty()
		s.hand(t, nft.Print(first))
		w.byNFT.hand(t, nft.Print(first))
		had := first
		for _, ranges := range [][]string{
			{"0.0.0.0/0"},
			{"0.0.0.0/8", "255.0.0.0/8", "10.0.0.0/8", "11.0.0.0/8", "12.0.0.1/32"},
			{"255.255.255.255/32", "0.0.0.0/32"},
			{"10.128.0.0/9", "11.0.0.0/8", "255.255.255.254/31", "0.0.0.1/32"},
			{"0.0.0.0/1", "128.0.0.0/1"},
		} {
			next := empty()
			for i, p := range ranges {
				src := netip.MustParsePrefix(p)
				b := src.Addr().As4()
				six := netip.PrefixFrom(netip.AddrFrom16([16]byte{0: b[0], 1: b[1], 14: b[2], 15: b[3]}), src.Bits())
				if src.IsSingleIP() && b[3] == 255 {
					six = netip.MustParsePrefix("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128")
				}
				owner := cluster.Owner{Kind: "Node", Name: fmt.Sprint("n", i)}
				next[nft.Inet].Sets["four"].Elements.Put(nft.Element{Src: src}, owner)
				next[nft.Inet].Sets["six"].Elements.Put(nft.Element{Src: six.Masked()}, cluster.Owner{})
				next[nft.Inet].Sets["mixed"].Elements.Put(nft.Element{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80,
					Src: src}, owner)
			}
			w.change(t, empty(), had)
			w.change(t, next, empty())
			had = next
		}
		many := empty()
		for i := range 5000 {
			owner := cluster.Owner{Kind: "Node", Name: fmt.Sprintf("%0*d", nft.MaxComment-len("Node/"), i)}
			many[nft.Inet].Maps["many"].Elements.Put(nft.Element{Addr: netip.MustParseAddr("fd00::1"),
				Protocol: cluster.TCP, Port: uint16(i), Slot: uint8(i % nft.Slots)},
				nft.Target{Addr: netip.MustParseAddrPort("[fd00::2]:80"), Owner: owner})
		}
		w.change(t, many, had)
		w.change(t, empty(), many)
	})
}

// TestRefusedElements checks that errors name the rejected element, and nothing is changed.
func TestRefusedElements(t *testing.T) {
	s := system{insidetest.NetNS(t), []string{"nft"}}
	target := s.noScripts().target(t)
	s.hand(t, nft.Print(nft.State{nft.Inet: example(t)[nft.Inet]}))
	before := s.raw(t)
	key := func(p cluster.Protocol, port uint16) nft.Element { return nft.Element{Protocol: p, Port: port} }
	to := nft.Target{Addr: netip.MustParseAddrPort("10.96.0.1:1")}
	for _, c := range []struct {
		name  string
		want  error
		says  string
		alter func(want, have *nft.Table) // the wanted and the (wrongly) assumed real State
	}{
		{"an element that is not there", unix.ENOENT,
			"nft: delete element inet hairpin nodeports4 { tcp . 7 }: no such file or directory",
			func(want, have *nft.Table) {
				have.Maps["nodeports4"].Elements.Put(key(cluster.TCP, 7), to)
				want.Maps["nodeports4"].Elements.Delete(key(cluster.TCP, 30080)) // could be made
			}},
		{"another value is there", unix.EEXIST, "nft: add element inet hairpin nodeports4 { tcp . 30080 }: file exists",
			func(want, have *nft.Table) {
				have.Maps["nodeports4"].Elements.Delete(key(cluster.TCP, 30080))
				want.Maps["nodeports4"].Elements.Put(key(cluster.TCP, 30080), to)
			}},
		{"a map that is not there", unix.ENOENT, "nft: add element inet hairpin gone: no such file or directory",
			func(want, have *nft.Table) {
				gone := func(elements delta.Map[nft.Element, nft.Target]) *nft.Map {
					return &nft.Map{Name: "gone", Family: cluster.IPv4, Key: []nft.KeyField{nft.KeyProto, nft.KeyPort},
						Elements: elements}
				}
				want.Maps["gone"] = gone(delta.MapOf(map[nft.Element]nft.Target{key(cluster.TCP, 1): to}))
				have.Maps["gone"] = gone(delta.Map[nft.Element, nft.Target]{})
			}},
	} {
		want, have := example(t)[nft.Inet], example(t)[nft.Inet]
		c.alter(want, have)
		// could be made
		want.Maps["nodeports6"].Elements.Put(key(cluster.UDP, 9),
			nft.Target{Addr: netip.MustParseAddrPort("[fd00::1]:1")})
		err := target.Apply(t.Context(), nft.Diff(nft.State{nft.Inet: want}, nft.State{nft.Inet: have}))
		if !errors.Is(err, c.want) || err.Error() != c.says {
			t.Errorf("%s: error %v", c.name, err)
		}
		if now := s.raw(t); now != before {
			t.Errorf("%s: after a refusal, there is\n%s\nbefore, there was\n%s", c.name, now, before)
		}
	}
	s.hand(t, "flush ruleset")
	want := example(t)
	want[nft.Inet].Maps["nodeports4"].Elements.Put(key(cluster.TCP, 1), to)
	if err := target.Apply(t.Context(), nft.Diff(want, example(t))); !errors.Is(err, unix.ENOENT) ||
		err.Error() != "nft: add element inet hairpin nodeports4: no such file or directory" {
		t.Errorf("without the table: error %v", err)
	}
}
