package nft_test

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/datapath/nft"
	"hairpin/datapath/nft/nfttest"
)

func TestParseReadsWhatPrintWrote(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := nfttest.States().Draw(t, "state")
		text := nft.Print(s)
		got, err := nft.Parse(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if !reflect.DeepEqual(got, s) {
			t.Fatalf("read back as\n%swant\n%s", nft.Print(got), text)
		}
		if again := nft.Print(got); again != text {
			t.Fatalf("printed again as\n%swant\n%s", again, text)
		}
	})
}

func TestDiffTurnsHaveIntoWant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want, have := nfttest.States().Draw(t, "want"), nfttest.States().Draw(t, "have")
		d := nft.Diff(want, have)
		mid := d.Grow().ApplyTo(have)
		got := d.Shrink().ApplyTo(mid)
		if left := nft.Diff(want, got); !left.Empty() {
			t.Fatalf("left over:\n%safter\n%s", left, d)
		}
		if n := d.Grow().Count() + d.Shrink().Count(); n != d.Count() {
			t.Fatalf("grow and shrink have %d differences, both have %d", n, d.Count())
		}
		if d.Empty() != (d.String() == "") {
			t.Fatalf("%d differences, commands:\n%s", d.Count(), d)
		}
		if !nft.Diff(want, want).Empty() {
			t.Fatal("a state differs from itself")
		}
		// Nothing that stays is missing during the change: every wanted element is in the middle
		// state.
		for f, table := range want {
			for name, m := range table.Maps {
				for e, to := range m.Elements.All() {
					if mid[f].Maps[name].Elements.At(e).Addr != to.Addr {
						t.Fatalf("after Grow, %v of map %s is missing", e, name)
					}
				}
			}
		}
	})
}

// TestOneServiceIsOneElement checks that a new Service adds one element, whatever the number of
// others.
func TestOneServiceIsOneElement(t *testing.T) {
	have := read(t, "want.nft")
	want := read(t, "want.nft")
	key := nft.Element{Protocol: cluster.TCP, Port: 30080}
	target := want[nft.Inet].Maps["nodeports4"].Elements.At(key)
	if !target.Addr.IsValid() {
		t.Fatal("the example has no node port 30080")
	}
	have[nft.Inet].Maps["nodeports4"].Elements.Delete(key)
	d := nft.Diff(want, have)
	if got, w := d.String(),
		"add element inet hairpin nodeports4 { tcp . 30080 comment \"Service/default/web\" : 10.96.0.80 . 80 }\n"; got != w {
		t.Errorf("a new Service gives\n%swant\n%s", got, w)
	}
	changed := want[nft.Inet].Maps["nodeports4"].Elements.Clone()
	other := want[nft.Inet].Maps["nodeports4"].Elements.At(nft.Element{Protocol: cluster.UDP, Port: 30053})
	changed.Put(key, nft.Target{Addr: other.Addr, Owner: target.Owner})
	have[nft.Inet].Maps["nodeports4"].Elements = changed
	d = nft.Diff(want, have)
	if got, w := d.String(), "delete element inet hairpin nodeports4 { tcp . 30080 }\n"+
		"add element inet hairpin nodeports4 { tcp . 30080 comment \"Service/default/web\" : 10.96.0.80 . 80 }\n"; got != w {
		t.Errorf("a changed Service gives\n%swant\n%s", got, w)
	}
	if d.Count() != 1 || !d.Shrink().Empty() {
		t.Errorf("a changed Service counts %d, and %d to remove", d.Count(), d.Shrink().Count())
	}
}

// TestListings parses what nft of Debian 12 and 13 printed for the example.
func TestListings(t *testing.T) {
	want := read(t, "want.nft")
	for _, name := range []string{"list-1.0.6.txt", "list-1.1.3.txt", "list-1.0.6-numeric.txt",
		"list-1.1.3-typeof.txt"} {
		if d := nft.Diff(want, read(t, name)); !d.Empty() {
			t.Errorf("%s differs:\n%s", name, d)
		}
	}
}

func TestParseNamesTheUnexpectedWord(t *testing.T) {
	table := func(s string) string { return "table inet hairpin {\n" + s + "\n}\n" }
	for _, c := range []struct{ text, words string }{
		{"flush ruleset", `"flush"`},
		{"table arp hairpin {\n}", `"arp"`},
		{"table inet other {\n}", `"other"`},
		{table("flowtable f {\n}"), `"flowtable"`},
		{table("chain a {\nct state new accept\n}"), `line 3: unexpected "new"`},
		{table("chain a {\ntype nat hook prerouting priority 0; policy drop;\n}"), `"drop"`},
		{table("chain a {\ntcp sport 1 accept\n}"), `"sport"`},
		{table("chain a {\naccept accept\n}"), `"accept"`},
		{table("chain a {\ncounter packets 1 bytes 2 accept\n}"), `"counter"`},
		{table("chain a {\nip saddr 10.0.0.0/40 accept\n}"), `"10.0.0.0/40"`},
		{table("chain a {\nip saddr ::1 accept\n}"), `"::1"`},
		{table("chain a {\nip daddr @nowhere accept\n}"), `nowhere`},
		{table("chain a {\ndnat ip to meta l4proto . th dport map @nowhere\n}"), `nowhere`},
		{table("map m {\ntype ipv4_addr : verdict\n}"), `"verdict"`},
		{table("set s {\ntype inet_service\nflags interval\n}"), `"flags"`},
		{table("map m {\ntype ipv4_addr . ifname : ipv4_addr . inet_service\n}"), `unknown type`},
		{table("map m {\ntype ipv4_addr . ifname : ipv4_addr\n}\nchain a {\ndnat ip to ip saddr . oifname map @m\n}"),
			`map to addresses and ports`},
		{table("set s {\ntype inet_service\nelements = { 1, 2 3 }\n}"), `"3"`},
		{table("set s {\ntype inet_service\nelements = { 1, 1 }\n}"), `second element 1`},
		{table("set s {\ntype inet_service\nelements = { 70000 }\n}"), `"70000"`},
		{table("chain a {\n}\nchain a {\n}"), `second chain a`},
		{"table inet hairpin {", `no end`},
		{table("chain a {\naccept comment \"x\n}"), `no end`},
	} {
		if _, err := nft.Parse(c.text); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%q gives error %v, want one with %s", c.text, err, c.words)
		}
	}
}

// TestFoundTableWithUnknownParts checks that content of other programs in our table is kept as
// text, and that the table is created again.
func TestFoundTableWithUnknownParts(t *testing.T) {
	want := read(t, "want.nft")
	text := strings.Replace(nft.Print(want), "\tchain prerouting {",
		"\tmap evil {\n\t\ttype ipv4_addr : verdict\n\t\telements = { 1.2.3.4 : drop,\n\t\t\t5.6.7.8 : drop "+
			"}\n\t}\n\tchain prerouting {", 1)
	text = strings.Replace(text, "\t\tfib daddr", "\t\tct state { established, related } accept\n\t\tfib daddr", 1)
	if _, err := nft.Parse(text); err == nil {
		t.Fatal("Parse takes a verdict map")
	}
	have, err := nft.ParseFound(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := have[nft.Inet].Unknown; len(got) != 2 ||
		!slices.ContainsFunc(got,
			func(s string) bool { return strings.Contains(s, "ct state { established , related } accept") }) {
		t.Errorf("unknown parts are %q", got)
	}
	d := nft.Diff(want, have)
	if !d.Tables[nft.Inet].Replace || !nft.Diff(want, d.ApplyTo(have)).Empty() {
		t.Errorf("the table is not made anew:\n%s", d)
	}
	if again, err := nft.Parse(nft.Print(have)); err != nil || !reflect.DeepEqual(again, have) {
		t.Errorf("printed and read again: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
		// each chain and map in its own table: small seeds allow many runs
		head, body, _ := strings.Cut(string(b), "{\n")
		for _, part := range strings.SplitAfter(body, "\n\t}\n") {
			f.Add(head + "{\n" + strings.TrimSuffix(part, "}\n") + "}\n")
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = nft.ParseFound(text) // must not hang or panic
		s, err := nft.Parse(text)
		if err != nil {
			return
		}
		printed := nft.Print(s)
		again, err := nft.Parse(printed)
		if err != nil {
			t.Fatalf("%v\n%s", err, printed)
		}
		if twice := nft.Print(again); twice != printed {
			t.Fatalf("printed\n%sthen\n%s", printed, twice)
		}
	})
}

func read(t *testing.T, name string) nft.State {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	s, err := nft.Parse(string(b))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return s
}
