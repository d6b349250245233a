package explain_test

import (
	"encoding/xml"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/walk"
	"hairpin/walk/explain"
)

// moved returns the demo with another endpoint for one Service: node-b's host instead of node-a's.
func moved(t *testing.T, backends ...string) (*walk.Walker, *cluster.Snapshot) {
	t.Helper()
	_, s := demo(t)
	out := *s
	out.Frontends = slices.Clone(s.Frontends)
	for i, f := range out.Frontends {
		if f.Owner.Name == "hostself" {
			g := *f
			g.Backends = nil
			for _, b := range s.Frontends {
				if b.Owner.Name == "hostother" && b.Family == f.Family && b.Protocol == f.Protocol &&
					len(backends) > 0 {
					g.Backends = b.Backends
				}
			}
			out.Frontends[i] = &g
		}
	}
	return planned(t, &out), &out
}

func answer(t *testing.T, w *walk.Walker, s *cluster.Snapshot, from, to string) *explain.Explanation {
	t.Helper()
	e, err := explain.Ask(w, s, explain.Question{From: from, To: to})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Difference reports a change if it affects the packet, and only then.
func TestDifference(t *testing.T) {
	w, s := demo(t)
	w2, s2 := moved(t, "hostother")
	before, after := answer(t, w, s, "host/node-a", "svc/default/hostself"),
		answer(t, w2, s2, "host/node-a", "svc/default/hostself")
	text := explain.Difference(before, after)
	for _, want := range []string{
		"- endpoint followed: 172.18.0.3:8081\n+ endpoint followed: 172.18.0.4:8081\n- Delivered to host node-a",
		"\n+ Delivered to host node-b port 8081, which sees 172.18.0.3:32768",
		"nat(dst=172.18.0.3:8081))\n-     -> bucket",
		"\n+ node-b: br-ex UplinkConntrack\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "br-svc ServiceConntrack") {
		t.Errorf("a step that stays is told:\n%s", text)
	}
	same := explain.Difference(answer(t, w, s, "host/node-b", "svc/default/web"),
		answer(t, w2, s2, "host/node-b", "svc/default/web"))
	if same != "" {
		t.Errorf("the change does not touch this packet:\n%s", same)
	}
}

// A refusal ends a packet, and the text says so.
func TestRefused(t *testing.T) {
	w, s := moved(t)
	e := answer(t, w, s, "host/node-a", "svc/default/hostself")
	if e.Good() || !strings.HasPrefix(e.Sentence(), "Rejected with a TCP reset") ||
		!strings.Contains(e.Text(explain.Form{All: true, Costs: true}),
			"Service default/hostself:tcp has no endpoint.") {
		t.Errorf("%s", e.Text(explain.Form{All: true, Costs: true}))
	}
	wellFormed(t, e.SVG())
}

// upright checks that all lines of paths are horizontal or vertical.
func upright(t *testing.T, picture string) {
	t.Helper()
	corner := regexp.MustCompile(`[ML](\d+) (\d+)`)
	for _, d := range regexp.MustCompile(`class="(?:there|back)" d="([^"]*)"`).FindAllStringSubmatch(picture, -1) {
		list := corner.FindAllStringSubmatch(d[1], -1)
		for i := 1; i < len(list); i++ {
			if list[i][1] != list[i-1][1] && list[i][2] != list[i-1][2] {
				t.Errorf("a way goes aslant: %s", d[1])
			}
		}
		if len(list) < 2 || corner.ReplaceAllString(d[1], "") != "" {
			t.Errorf("not a way within the picture: %q", d[1])
		}
	}
}

// A picture is XML, shows every node on the path, and has a number and a line for each translation.
func TestPicture(t *testing.T) {
	w, s := demo(t)
	for _, c := range [][2]string{
		{"host/node-a", "svc/default/hostself"}, {"outside", "svc/default/podremote"},
		{"pod/default/pod-a2", "svc/default/hostother"},
		{"pod/default/pod-a1", "svc/default/podlocal"}, {"host/node-a", "10.96.1.99:80"},
		{"host/node-b", "192.0.2.7:443"},
	} {
		e := answer(t, w, s, c[0], c[1])
		picture := e.SVG()
		wellFormed(t, picture)
		upright(t, picture)
		for _, step := range slices.Concat(e.Trace.Forward, e.Trace.Reply) {
			if step.Node != "" && !strings.Contains(picture, ">"+step.Node+"<") {
				t.Errorf("%s: node %s is not shown", c, step.Node)
			}
			if strings.Contains(step.Did, "becomes") && !strings.Contains(picture, step.Node+": "+step.Stage+": ") {
				t.Errorf("%s: not in the legend: %s %s", c, step.Stage, step.Did)
			}
			if explain.PlaceOf(step.Stage).Kind == explain.Unknown {
				t.Errorf("%s: %q is no place", c, step.Stage)
			}
		}
		if !strings.Contains(picture, "prefers-color-scheme:dark") {
			t.Errorf("%s: no dark mode", c)
		}
	}
}

func wellFormed(t *testing.T, picture string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		if _, err := d.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatalf("%v:\n%s", err, picture)
		}
	}
}

// The first missing rule on the path is the fault, whatever follows.
func TestFault(t *testing.T) {
	w, s := demo(t)
	w2, s2 := moved(t, "hostother")
	wanted, real := answer(t, w, s, "host/node-a", "svc/default/hostself"),
		answer(t, w2, s2, "host/node-a", "svc/default/hostself")
	f := explain.FindFault(wanted, real)
	if f == nil || f.Node != "node-a" || !strings.HasPrefix(f.Stage, "br-svc group ") ||
		f.Object != "Service/default/hostself" ||
		!strings.Contains(f.Wanted, "172.18.0.3:8081") || !strings.Contains(f.Real, "172.18.0.4:8081") {
		t.Errorf("%+v", f)
	}
	if f := explain.FindFault(wanted, wanted); f != nil {
		t.Errorf("no fault, but %s", f)
	}
}
