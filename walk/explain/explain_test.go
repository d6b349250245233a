package explain_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/ui/demotest"
	"hairpin/walk"
	"hairpin/walk/explain"
	"hairpin/walk/explain/question"
)

// demo returns the planned cluster of examples/demo.
func demo(t testing.TB) (*walk.Walker, *cluster.Snapshot) {
	t.Helper()
	s := demoWith(t, cluster.EngineOpenFlow)
	return demotest.Planned(t, s), s
}

// demoWith returns the cluster of examples/demo with a Service engine.
func demoWith(t testing.TB, engine string) *cluster.Snapshot {
	t.Helper()
	return demotest.Read(t, "../../examples/demo", engine)
}

func ask(t testing.TB, q question.Question) *explain.Explanation {
	t.Helper()
	w, s := demo(t)
	e, err := explain.Ask(w, s, q)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestHairpin follows the packet that the project is named after. With OVN's load balancers, it has
// the tables and zones of the document, in the same order, and the two connections.
func TestHairpin(t *testing.T) {
	s := demoWith(t, cluster.EngineOVN)
	text := demotest.Answer(t, demotest.Planned(t, s), s, "host/node-a",
		"svc/default/hostself").Text(explain.Form{All: true, Costs: true})
	there, back, _ := strings.Cut(text, "\nREPLY\n")
	table, zone := regexp.MustCompile(`br-ex ([A-Z]\w+)`), regexp.MustCompile(`CT .* zone=(\d+)`)
	for _, c := range []struct {
		name, in string
		find     *regexp.Regexp
		want     []string
	}{
		{"tables there", there, table, []string{"Classifier", "ToGatewayRouter", "Classifier", "SNAT", "ToHost"}},
		{"tables back", back, table, []string{"Classifier", "UnDNAT", "ToGatewayRouter", "Classifier", "ToHost"}},
		{"zones", there, zone, []string{"64001", "64001", "64002"}},
	} {
		var got []string
		for _, m := range c.find.FindAllStringSubmatch(c.in, -1) {
			got = append(got, m[1])
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q instead of %q", c.name, got, c.want)
		}
	}
	for _, want := range []string{
		"Host node-a sees two connections, which are parts of one:\n  1. 172.18.0.3:32768 > 10.96.1.3:80\n  2. " +
			"169.254.169.1:32768 > 172.18.0.3:8081\n",
		"Delivered to host node-a port 8081, which sees 169.254.169.1:32768; the reply comes from 10.96.1.3:80, as " +
			"the client expects.\n",
		"172.18.0.3:8081                   host/node-a  node-a  ready  followed\n",
		"\nFirst packet: conntrack passes: 10 (2 in hosts' kernels), datapath lookups: 9\nLater packet: conntrack " +
			"passes: 8 (2 in hosts' kernels), datapath lookups: 7\nReply: conntrack passes: 7 (2 in hosts' " +
			"kernels), datapath lookups: 6\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
}

// Every form of a question leads to the intended address.
func TestQuestions(t *testing.T) {
	w, s := demo(t)
	for _, c := range []struct {
		q    question.Question
		sent string
		at   string // where the packet arrives
	}{
		{question.Question{From: "pod/default/pod-a2", To: "svc/default/web", Endpoint: "pod/default/pod-b2"},
			"tcp 10.244.1.4:32768 > 10.96.1.10:80", "pod/default/pod-b2"},
		{question.Question{From: "pod/default/pod-a2", To: "svc/default/web:udp", Family: cluster.IPv6,
			Endpoint: "[fd00:10:244:3::3]:8080"}, "udp [fd00:10:244:1::4]:32768 > [fd00:10:96::110]:80",
			"pod/default/pod-c1"},
		{question.Question{From: "pod/default/pod-a2", To: "svc/default/web:80", Protocol: cluster.UDP,
			Endpoint: "10.244.2.3"}, "udp 10.244.1.4:32768 > 10.96.1.10:80", "pod/default/pod-b1"},
		{question.Question{From: "outside", To: "svc/default/hostself"}, "tcp 192.0.2.1:32768 > 172.18.0.3:30003",
			"host/node-a"},
		{question.Question{From: "outside", To: "svc/default/hostself", Via: "node-b", Family: cluster.IPv6},
			"tcp [2001:db8::1]:32768 > [fc00:f853:ccd::4]:30003", "host/node-a"},
		{question.Question{From: "outside/172.18.0.100", To: "172.18.0.5:30004"},
			"tcp 172.18.0.100:32768 > 172.18.0.5:30004", "host/node-b"},
		{question.Question{From: "host/node-c", To: "svc/default/hostself", NodePort: true},
			"tcp 172.18.0.5:32768 > 172.18.0.5:30003", "host/node-a"},
		{question.Question{From: "host/node-c", To: "pod/default/pod-c1:8080"}, "tcp 10.244.3.2:32768 > 10.244.3.3:8080",
			"pod/default/pod-c1"},
		{question.Question{From: "pod/pod-a2", To: "web.default.svc:80", Endpoint: "pod/pod-b2"},
			"tcp 10.244.1.4:32768 > 10.96.1.10:80", "pod/default/pod-b2"},
		{question.Question{From: "pod/pod-a2", To: "web.default.svc.cluster.local:udp", Endpoint: "pod/pod-b2"},
			"udp 10.244.1.4:32768 > 10.96.1.10:80", "pod/default/pod-b2"},
		{question.Question{From: "pod/pod-a2", To: "svc/hostself"}, "tcp 10.244.1.4:32768 > 10.96.1.3:80",
			"host/node-a"},
		{question.Question{From: "pod/pod-a2", To: "10.96.1.3"}, "tcp 10.244.1.4:32768 > 10.96.1.3:80", "host/node-a"},
		{question.Question{From: "pod/pod-a2", To: "fd00:10:96::103"},
			"tcp [fd00:10:244:1::4]:32768 > [fd00:10:96::103]:80", "host/node-a"},
		{question.Question{From: "pod/pod-a2", To: "[fd00:10:96::103]:udp"},
			"udp [fd00:10:244:1::4]:32768 > [fd00:10:96::103]:80", "host/node-a"},
		{question.Question{From: "host/node-a", To: "svc/default/hostother", Endpoint: "host/node-b"},
			"tcp 172.18.0.3:32768 > 10.96.1.4:80", "host/node-b"},
	} {
		e, err := explain.Ask(w, s, c.q)
		if err != nil {
			t.Errorf("%+v: %v", c.q, err)
			continue
		}
		if sent := e.Trace.Sent.String(); sent != c.sent || !e.Good() || e.Trace.Verdict.At.String() != c.at {
			t.Errorf("%+v: sent %s instead of %s, at %s instead of %s\n%s", c.q, e.Trace.Sent, c.sent,
				e.Trace.Verdict.At, c.at, e.Text(explain.Form{All: true, Costs: true}))
		}
	}
}

// The error describes why a question makes no sense.
func TestBadQuestions(t *testing.T) {
	w, s := demo(t)
	for _, c := range []struct {
		q    question.Question
		want string
	}{
		{question.Question{From: "node-a", To: "svc/default/web"},
			`FROM "node-a": must be pod/[NAMESPACE/]NAME, host/NODE, outside or outside/ADDRESS`},
		{question.Question{From: "host/node-x", To: "svc/default/web"},
			`FROM "host/node-x": there is no Node "node-x"; there are node-a, node-b, node-c`},
		{question.Question{From: "pod/default/x", To: "svc/default/web"},
			`FROM "pod/default/x": there is no Pod "default/x" with an address of its own (a Pod in the host's network is host/NODE)`},
		{question.Question{From: "host/node-a", To: "svc/default/x"},
			`TO "svc/default/x": there is no Service "default/x" with a ClusterIP`},
		{question.Question{From: "host/node-a", To: "svc/default/web:81"},
			`TO "svc/default/web:81": the Service has no such port; it has 80/tcp (tcp), 80/udp (udp)`},
		{question.Question{From: "host/node-a", To: "10.96.1.99"},
			`TO "10.96.1.99": needs a port, ADDRESS:PORT: no Service has the address`},
		{question.Question{From: "host/node-a", To: "web.svc:80"},
			`TO "web.svc:80": must be svc/[NAMESPACE/]NAME[:PORT], NAME.NAMESPACE.svc[:PORT], ADDRESS[:PORT], ` +
				`pod/[NAMESPACE/]NAME:PORT or outside/ADDRESS[:PORT]`},
		{question.Question{From: "host/node-a", To: "10.96.1.10:http"},
			`TO "10.96.1.10:http": the Service has no such port; it has 80/tcp (tcp), 80/udp (udp)`},
		{question.Question{From: "pod/default/pod-a", To: "svc/default/web"},
			`FROM "pod/default/pod-a": there is no Pod "default/pod-a" with an address of its own (a Pod in the host's ` +
				`network is host/NODE); nearest: default/pod-a1, default/pod-a2`},
		{question.Question{From: "host/node-a", To: "svc/wbe", DefaultNamespace: "shop"},
			`TO "svc/wbe": there is no Service "shop/wbe" with a ClusterIP`},
		{question.Question{From: "host/node-a", To: "svc/shop/web"},
			`TO "svc/shop/web": there is no Service "shop/web" with a ClusterIP; nearest: default/web`},
		{question.Question{From: "host/node-a", To: "svc/default/hostslef"},
			`TO "svc/default/hostslef": there is no Service "default/hostslef" with a ClusterIP; nearest: default/hostself`},
		{question.Question{From: "outside/192.0.2.1", To: "[fd00:10:96::110]:80"},
			`TO "[fd00:10:96::110]:80": fd00:10:96::110 is not IPv4`},
		{question.Question{From: "host/node-a", To: "svc/default/web", Endpoint: "10.0.0.1"},
			`--endpoint "10.0.0.1": the Service has no such endpoint; it has 10.244.1.3:8080, 10.244.1.4:8080, ` +
				`10.244.2.3:8080, 10.244.2.4:8080 and 2 more`},
		{question.Question{From: "outside", To: "svc/default/web", Via: "x"},
			`--via "x": there is no Node "x"; there are node-a, node-b, node-c`},
		{question.Question{From: "host/node-a", To: "svc/default/web", Via: "x"},
			`--via "x": there is no Node "x"; there are node-a, node-b, node-c`},
	} {
		if _, err := explain.Ask(w, s, c.q); err == nil || err.Error() != c.want {
			t.Errorf("%+v: %v, instead of: %s", c.q, err, c.want)
		}
	}
}

// The table distinguishes possible endpoints from excluded ones.
func TestEndpoints(t *testing.T) {
	e := ask(t, question.Question{From: "host/node-a", To: "svc/default/web", Endpoint: "pod/default/pod-c1"})
	if len(e.Endpoints) != 6 {
		t.Fatalf("%d endpoints", len(e.Endpoints))
	}
	for _, x := range e.Endpoints {
		if !x.Possible || x.Chosen != (x.Owner == "pod/default/pod-c1") || x.State != "ready" || x.Node == "" {
			t.Errorf("%+v", x)
		}
	}
}

// The other formats contain the same facts as the text.
func TestForms(t *testing.T) {
	e := ask(t, question.Question{From: "pod/default/pod-a2", To: "svc/default/podremote"})
	text, err := e.JSON()
	if err != nil {
		t.Fatal(err)
	}
	type step struct {
		Node, Stage, Rule, Did, Why string
		Before, After               struct{ Destination string }
	}
	var x struct {
		Forward []step
		Verdict struct {
			Delivered, Answered bool
			At                  string
		}
	}
	if err := json.Unmarshal(text, &x); err != nil {
		t.Fatal(err)
	}
	if !x.Verdict.Delivered || !x.Verdict.Answered || x.Verdict.At != "pod/default/pod-c1" ||
		len(x.Forward) != len(e.Trace.Forward) {
		t.Errorf("%s", text)
	}
	if !slices.ContainsFunc(x.Forward, func(f step) bool {
		return f.Before.Destination == "10.96.1.2:80" && f.After.Destination == "10.244.3.3:8080" &&
			f.Why == "Service/default/podremote"
	}) {
		t.Errorf("no step translates the destination: %+v", x.Forward)
	}
	page := e.Markdown(2, "way.svg")
	for _, s := range e.Trace.Forward {
		if !strings.Contains(page, s.Rule) || !strings.Contains(page, s.Stage) {
			t.Errorf("the page does not name %s: %s", s.Stage, s.Rule)
		}
	}
	if plain, coloured := e.Text(explain.Form{All: true, Costs: true}),
		e.Text(explain.Form{All: true, Costs: true, Colour: true}); plain == coloured ||
		regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(coloured, "") != plain {
		t.Error("colours are more than colours")
	}
}
