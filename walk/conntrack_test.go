package walk

import (
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/walk/conntrack"
	"hairpin/walk/packet"
)

// dumped is one connection of testdata/conntrack.txt.
type dumped struct {
	name         string
	from         Point
	client       netip.Addr
	to, endpoint netip.AddrPort
	seen         netip.Addr
	entries      []string
	line         int
}

func readDumps(t *testing.T) []dumped {
	t.Helper()
	text, err := os.ReadFile("testdata/conntrack.txt")
	if err != nil {
		t.Fatal(err)
	}
	header := regexp.MustCompile(`^== (\S+): (\S+) (\S+) -> (\S+), (\S+) sees (\S+)$`)
	points := map[string]Point{"host/n1": inHost(1), "pod/default/pod1": inPod(1, "pod%d"),
		"pod/default/podb1": inPod(1, "podb%d"), "outside": {}}
	var all []dumped
	for i, line := range strings.Split(string(text), "\n") {
		if m := header.FindStringSubmatch(line); m != nil {
			from, ok := points[m[2]]
			if !ok {
				t.Fatalf("line %d: who is %s?", i+1, m[2])
			}
			all = append(all, dumped{name: m[1], from: from, client: addr("%s", m[3]), to: ap("%s", m[4]),
				endpoint: ap("%s", m[5]), seen: addr("%s", m[6]), line: i + 1})
		} else if line != "" && line[0] != '#' {
			all[len(all)-1].entries = append(all[len(all)-1].entries, line)
		}
	}
	return all
}

// entriesOf lists the entries that a walk creates in Open vSwitch, node first.
func entriesOf(tr Trace) []string {
	var list []string
	for _, s := range slices.Concat(tr.Forward, tr.Reply) {
		kernel := s.Stage == "ip route" || strings.HasPrefix(s.Stage, "nft ")
		if s.Entry != "" && !kernel {
			list = append(list, s.Node+" "+s.Entry)
		}
	}
	slices.Sort(list)
	return list
}

// A walk creates exactly the conntrack entries that real nodes had after a connection, and the
// endpoint sees the same client address.
func TestRealConntrack(t *testing.T) {
	w := New(byHand(2))
	dumps := readDumps(t)
	if len(dumps) != 30 {
		t.Fatalf("%d connections, not 30", len(dumps))
	}
	for _, d := range dumps {
		p := packet.Packet{Protocol: cluster.TCP, Dst: d.to.Addr(), DstPort: d.to.Port(), SrcPort: 40000}
		if d.from == (Point{}) {
			p.Src = d.client
		}
		tr, err := w.Walk(d.from, p, d.endpoint)
		if err != nil {
			t.Errorf("%s: %v\n%s", d.name, err, tr)
			continue
		}
		if tr.Sent.Src != d.client {
			t.Errorf("%s: sent from %s, really from %s", d.name, tr.Sent.Src, d.client)
		}
		if v := tr.Verdict; !v.Delivered || !v.Answered || v.Seen.Src != d.seen ||
			netip.AddrPortFrom(v.Seen.Dst, v.Seen.DstPort) != d.endpoint {
			t.Errorf("line %d, %s: really %s saw %s\n%s", d.line, d.name, d.endpoint, d.seen, tr)
		}
		slices.Sort(d.entries)
		if got := entriesOf(tr); !slices.Equal(got, d.entries) {
			t.Errorf("line %d, %s:\nwalk\n %s\nreal\n %s", d.line, d.name, strings.Join(got, "\n "),
				strings.Join(d.entries, "\n "))
		}
	}
}

// Later packets create no entry, and arrive at the same endpoint.
func TestLaterPackets(t *testing.T) {
	w := New(byHand(2))
	for _, d := range readDumps(t) {
		p := packet.Packet{Protocol: cluster.TCP, Src: d.client, Dst: d.to.Addr(), DstPort: d.to.Port(), SrcPort: 40000}
		r := w.run([]netip.AddrPort{d.endpoint})
		tr, err := r.walk(d.from, p)
		if err != nil {
			t.Fatalf("%s: %v", d.name, err)
		}
		r.Prefer = nil
		start, err := r.start(d.from, &p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := r.follow(start, tr.Sent)
		if err != nil || again.At != tr.Verdict.At ||
			conntrack.TupleOf(&again.Seen) != conntrack.TupleOf(&tr.Verdict.Seen) {
			t.Errorf("%s: later packets: %v, %+v\n%s", d.name, err, again,
				Trace{Sent: tr.Sent, Forward: r.Steps, Verdict: again})
		}
		if slices.ContainsFunc(r.Steps, func(s packet.Step) bool { return s.Entry != "" }) {
			t.Errorf("%s: later packets make entries\n%s", d.name, Trace{Sent: tr.Sent, Forward: r.Steps})
		}
	}
}

// A translated source port that is taken gets the next one of the range, also below 1024.
func TestPortRange(t *testing.T) {
	var table conntrack.Table
	var got []uint16
	for _, src := range []string{"10.244.1.3", "10.244.1.4"} {
		p := tcp("172.18.0.100:80")
		p.Src, p.SrcPort = addr("%s", src), 501
		table.Track(&p, &conntrack.State{}, conntrack.Zone{Node: "n1"}, conntrack.Translation{Commit: true,
			NAT: flow.NATSrc, Addr: addr("172.18.0.3"), Ports: conntrack.PortRange{Min: 500, Max: 501}})
		got = append(got, p.SrcPort)
	}
	if want := []uint16{501, 500}; !slices.Equal(got, want) {
		t.Errorf("source ports %v, not %v", got, want)
	}
}
