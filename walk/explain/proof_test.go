package explain_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/ui/demotest"
	"hairpin/walk/explain"
	"hairpin/walk/explain/question"
	"hairpin/walk/packet"
)

// A proof agrees with the observations of the nodes, and names the first step that was not
// observed, with each service engine.
func TestProve(t *testing.T) {
	_, s := demo(t)
	for _, c := range []struct{ engine, bridge, table string }{
		{cluster.EngineOVN, "br-ex", "br-ex SNAT"}, {cluster.EngineOpenFlow, claims.ServiceBridge, "br-svc SNAT"},
	} {
		t.Run(c.engine, func(t *testing.T) {
			changed := *s
			changed.Nodes = slices.Clone(s.Nodes)
			for i, n := range changed.Nodes {
				other := *n
				other.Gateway.OpenFlow = c.engine == cluster.EngineOpenFlow
				changed.Nodes[i] = &other
			}
			e, err := explain.Ask(demotest.Planned(t, &changed), &changed,
				question.Question{From: "host/node-a", To: "svc/default/hostself", FromPort: 40000})
			if err != nil {
				t.Fatal(err)
			}
			proves(t, e, c.bridge, c.table)
		})
	}
}

// proves checks the proof of a packet that passes a bridge, by the counters of the bridge's flows,
// and also without those of one table.
func proves(t *testing.T, e *explain.Explanation, bridge, table string) {
	p := netip.MustParseAddrPort
	sent := explain.Sent{Protocol: "tcp", From: p("0.0.0.0:40000"), To: p("10.96.1.3:80"), Outcome: explain.Answered}
	arrival := explain.Arrival{At: "host/node-a", From: p("169.254.169.1:40000"), To: p("172.18.0.3:8081")}
	witness := func(without string) map[string]*explain.Observation {
		w := &explain.Observation{Before: map[flow.Key]uint64{}, After: map[flow.Key]uint64{}, Userspace: true}
		for _, way := range [][]packet.Step{e.Trace.Forward, e.Trace.Reply} {
			for _, s := range way {
				if f, err := flow.ParseFlow(s.Rule); err == nil && strings.HasPrefix(s.Stage, bridge) {
					if bridge == claims.ServiceBridge {
						f.Key.Bridge = bridge // a flow without a bridge is the gateway bridge's
					}
					w.Before[f.Key], w.After[f.Key] = 5, 7
					if s.Stage == without {
						w.After[f.Key] = 5
					}
				}
				w.Entries = append(w.Entries, s.Entry)
			}
		}
		return map[string]*explain.Observation{"node-a": w}
	}
	for _, c := range []struct {
		name      string
		sent      explain.Sent
		witnesses map[string]*explain.Observation
		arrivals  []explain.Arrival
		want      string // first difference
	}{
		{"all was seen", sent, witness(""), []explain.Arrival{arrival}, ""},
		{"a flow counted nothing", sent, witness(table), []explain.Arrival{arrival}, "node-a: " + table +
			": the flow counted no packet"},
		{"nobody came", sent, witness(""), nil, "host/node-a saw nothing of it"},
		{"with another source", sent, witness(""),
			[]explain.Arrival{{At: "host/node-a", From: p("172.18.0.3:40000"), To: p("172.18.0.3:8081")}},
			"host/node-a saw 172.18.0.3:40000; the walk says 169.254.169.1"},
		{"refused", explain.Sent{Protocol: "tcp", From: sent.From, To: sent.To, Outcome: explain.Refused,
			Detail: "connection refused"}, witness(""), []explain.Arrival{arrival},
			"the client got refused (connection refused); the walk says answered"},
	} {
		proof := e.Prove(c.sent, c.witnesses, c.arrivals, true)
		got := ""
		if len(proof.Different) > 0 {
			got = proof.Different[0]
		}
		if got != c.want {
			t.Errorf("%s: %q, not %q", c.name, got, c.want)
		}
		e.Proof = proof
		if e.Good() != (c.want == "") ||
			!strings.Contains(e.Text(explain.Form{All: true, Costs: true}),
				"SENT tcp 172.18.0.3:40000 > 10.96.1.3:80: "+c.sent.Outcome) {
			t.Errorf("%s: good %v:\n%s", c.name, e.Good(), proof)
		}
	}
}

// The counter of a step is that of its flow on its own bridge. A bridge without Hairpin's flows has
// no counters.
func TestProveBridges(t *testing.T) {
	const rule = "table=0,priority=100,ip actions=NORMAL"
	f, err := flow.ParseFlow(rule)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		stage, bridge string // bridge: in the key of the flow
		known         bool
	}{
		{"br-ex Classifier", "", true}, {"br-svc SNAT", claims.ServiceBridge, true},
		{"br-tun Nodes", claims.TunnelBridge, true}, {"br-local table 0", "", false},
	} {
		e := &explain.Explanation{}
		e.Trace.Forward = []packet.Step{{Node: "node-a", Stage: c.stage, Rule: rule}}
		key := f.Key
		key.Bridge = c.bridge
		observed := map[string]*explain.Observation{
			"node-a": {Before: map[flow.Key]uint64{key: 5}, After: map[flow.Key]uint64{key: 6}}}
		proof := e.Prove(explain.Sent{Outcome: explain.Silent}, observed, nil, false)
		if ev := proof.Forward[0]; ev.Known != c.known || ev.Seen != c.known || len(proof.Different) > 0 {
			t.Errorf("%s: %+v, different: %q", c.stage, ev, proof.Different)
		}
	}
}
