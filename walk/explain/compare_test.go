package explain_test

import (
	"encoding/xml"
	"io"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/ui/demotest"
	"hairpin/walk"
	"hairpin/walk/explain"
	"hairpin/walk/explain/picture"
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
	return demotest.Planned(t, &out), &out
}

// Difference reports a change if it affects the packet, and only then.
func TestDifference(t *testing.T) {
	w, s := demo(t)
	w2, s2 := moved(t, "hostother")
	before, after := demotest.Answer(t, w, s, "host/node-a", "svc/default/hostself"),
		demotest.Answer(t, w2, s2, "host/node-a", "svc/default/hostself")
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
	same := explain.Difference(demotest.Answer(t, w, s, "host/node-b", "svc/default/web"),
		demotest.Answer(t, w2, s2, "host/node-b", "svc/default/web"))
	if same != "" {
		t.Errorf("the change does not touch this packet:\n%s", same)
	}
}

// A refusal ends a packet, and the text says so.
func TestRefused(t *testing.T) {
	w, s := moved(t)
	e := demotest.Answer(t, w, s, "host/node-a", "svc/default/hostself")
	if e.Good() || !strings.HasPrefix(e.Sentence(), "Rejected with a TCP reset") ||
		!strings.Contains(e.Text(explain.Form{All: true, Costs: true}),
			"Service default/hostself:tcp has no endpoint.") {
		t.Errorf("%s", e.Text(explain.Form{All: true, Costs: true}))
	}
	wellFormed(t, picture.SVG(e))
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
	wanted, real := demotest.Answer(t, w, s, "host/node-a", "svc/default/hostself"),
		demotest.Answer(t, w2, s2, "host/node-a", "svc/default/hostself")
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
