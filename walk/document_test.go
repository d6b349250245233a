package walk

import (
	"flag"
	"hairpin/walk/packet"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the walks in testdata")

// documented lists the use cases of docs/design/origins.md#host-to-service, and the paths that it
// assumes.
var documented = []struct {
	name   string
	from   Point
	to     [2]string // IPv4, IPv6
	seen   [2]string
	stages []string // of the bridge, with its conntrack zones, in the order of the document
}{
	{"host-pod", inHost(1), [2]string{"10.96.0.11:80", "[fd00:10:96::11]:80"}, [2]string{"100.64.0.3", "fd98::3"},
		[]string{"n1 Classifier 64001", "n1 ToGatewayRouter", "reply", "n1 Classifier 64001", "n1 ToHost"}},
	{"host-other", inHost(1), [2]string{"10.96.0.22:80", "[fd00:10:96::22]:80"},
		[2]string{"172.18.0.3", "fc00:f853:ccd::3"},
		[]string{"n1 Classifier 64001", "n1 ToGatewayRouter", "n1 Classifier 64000", "n2 Classifier 64000",
			"n2 UplinkConntrack", "reply",
			"n2 Classifier 64000", "n1 Classifier 64000", "n1 UplinkConntrack", "n1 Classifier 64001", "n1 ToHost"}},
	{"host-self", inHost(1), [2]string{"10.96.0.21:80", "[fd00:10:96::21]:80"}, [2]string{"169.254.169.1", "fd69::1"},
		[]string{"n1 Classifier 64001", "n1 ToGatewayRouter", "n1 Classifier 64001", "n1 SNAT 64002", "n1 ToHost",
			"reply",
			"n1 Classifier 64002", "n1 UnDNAT 64001", "n1 ToGatewayRouter", "n1 Classifier 64001", "n1 ToHost"}},
	{"host-secondary", inHost(1), [2]string{"10.96.0.40:80", "[fd00:10:96::40]:80"},
		[2]string{"169.254.169.1", "fd69::1"},
		[]string{"n1 Classifier 64001", "n1 ToGatewayRouter", "n1 Classifier 64001", "n1 SNAT 64002", "n1 ToHost",
			"reply",
			"n1 Classifier 64002", "n1 UnDNAT 64001", "n1 ToGatewayRouter", "n1 Classifier 64001", "n1 ToHost"}},
	{"pod-self", inPod(1, "pod%d"), [2]string{"10.96.0.11:80", "[fd00:10:96::11]:80"},
		[2]string{"169.254.169.5", "fd69::5"}, []string{"reply"}},
}

// bridgeStages lists a walk's tables of the bridge, with the zone if the flow has one.
func bridgeStages(tr Trace) []string {
	var list []string
	add := func(steps []packet.Step) {
		for _, s := range steps {
			if table, ok := strings.CutPrefix(s.Stage, "breth0 "); ok {
				if _, zone, ok := strings.Cut(s.Rule, "zone="); ok {
					table += " " + zone[:5]
				}
				list = append(list, s.Node+" "+table)
			}
		}
	}
	add(tr.Forward)
	list = append(list, "reply")
	add(tr.Reply)
	return list
}

// TestDocument checks the walks of the document: the same tables and zones in both families, the
// addresses in it, and the IPv4 text in testdata.
func TestDocument(t *testing.T) {
	w := New(byHand(2))
	for _, c := range documented {
		for i, to := range c.to {
			tr, err := w.Walk(c.from, tcp(to))
			if err != nil {
				t.Fatalf("%s: %v\n%s", c.name, err, tr)
			}
			if v := tr.Verdict; !v.Delivered || !v.Answered || v.Seen.Src != netip.MustParseAddr(c.seen[i]) {
				t.Errorf("%s: the endpoint should see %s\n%s", c.name, c.seen[i], tr)
			}
			if got := bridgeStages(tr); !slices.Equal(got, c.stages) {
				t.Errorf("%s %s\n got %q\nwant %q", c.name, to, got, c.stages)
			}
			if i == 0 {
				golden(t, c.name, tr.String())
			}
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".walk")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test ./walk -update rewrites it):\n%s", file, got)
	}
}

// In the same-node case, the host sees two connections, neither of which is with itself.
func TestTwoConnections(t *testing.T) {
	tr := walk(t, byHand(1), inHost(1), tcp("10.96.0.21:80"))
	var kernel []string
	for _, s := range tr.Forward {
		if s.Entry != "" && s.Stage == "ip route" {
			kernel = append(kernel, s.Entry)
		}
	}
	want := []string{
		"tcp src=172.18.0.3 dst=10.96.0.21 sport=40000 dport=80 src=10.96.0.21 dst=172.18.0.3 sport=80 dport=40000",
		"tcp src=169.254.169.1 dst=172.18.0.3 sport=40000 dport=8081 src=172.18.0.3 dst=169.254.169.1 " +
			"sport=8081 dport=40000",
	}
	if !slices.Equal(kernel, want) {
		t.Errorf("got %q\nwant %q", kernel, want)
	}
}

// nft translates a packet from a host to its own node port before it leaves the host. The gateway
// router translates packets of other clients.
func TestNodePort(t *testing.T) {
	tr := walk(t, byHand(2), inHost(1), tcp("172.18.0.3:30015"), ap("10.244.2.3:8080"))
	if v := tr.Verdict; !v.Answered || v.At != inPod(2, "pod%d") || v.Seen.Src != addr("100.64.0.3") {
		t.Errorf("host to its own node port:\n%s", tr)
	}
	if s := tr.Forward[1]; s.Stage != "nft inet hairpin output" ||
		s.Did != "destination 172.18.0.3:30015 becomes 10.96.0.30:80" || s.Why.Name != "all" {
		t.Errorf("second step: %+v", s)
	}
	if a := tr.Verdict.Answer; a.Src != addr("172.18.0.3") || a.SrcPort != 30015 {
		t.Errorf("answered as %s", a)
	}
	p := tcp("172.18.0.3:30015")
	p.Src = addr("172.18.0.100")
	tr = walk(t, byHand(2), Point{}, p)
	if v := tr.Verdict; !v.Answered || v.At != inPod(1, "pod%d") || v.Seen.Src != addr("100.64.0.3") {
		t.Errorf("outside to a node port:\n%s", tr)
	}
	i := slices.IndexFunc(tr.Forward, func(s packet.Step) bool { return s.Stage == "GR_n1 lr_in_dnat" })
	if got := tr.Forward[i].Choices; !slices.Equal(got,
		[]netip.AddrPort{ap("10.244.1.3:8080"), ap("10.244.2.3:8080")}) {
		t.Errorf("choices %v", got)
	}
}
