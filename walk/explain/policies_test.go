package explain_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/delta"
	"hairpin/pipeline"
	"hairpin/plan"
	"hairpin/policy"
	"hairpin/ui/demotest"
	"hairpin/walk"
	"hairpin/walk/explain"
	"hairpin/walk/explain/picture"
	"hairpin/walk/explain/question"
	"hairpin/walk/explain/why"
	"hairpin/walk/packet"
	"hairpin/watch"
)

// policed returns the cluster of the story about NetworkPolicies, with a text replaced.
func policed(t *testing.T, old, now string) *cluster.Snapshot {
	t.Helper()
	return readStory(t, "../../plan/testdata/network-policies.txtar", old, now)
}

// readStory returns the cluster of a story, with a text replaced.
func readStory(t *testing.T, file, old, now string) *cluster.Snapshot {
	t.Helper()
	story, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range story.Files {
		if f.Name != "objects.yaml" {
			continue
		}
		if !strings.Contains(string(f.Data), old) {
			t.Fatalf("the story has no %q", old)
		}
		dir := t.TempDir()
		objects := strings.Replace(string(f.Data), old, now, 1)
		if err := os.WriteFile(filepath.Join(dir, f.Name), []byte(objects), 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := watch.ReadFiles(dir, cluster.DefaultConfig())
		if err != nil || len(s.Problems) > 0 {
			t.Fatal(err, s.Problems)
		}
		return s
	}
	t.Fatal("the story has no objects")
	return nil
}

// TestPolicies checks that a walk reports the decisions of policies, in each form.
func TestPolicies(t *testing.T) {
	s, via := policed(t, "", ""), map[string]string{}
	askIn := func(s *cluster.Snapshot, from, to string) *explain.Explanation {
		e, err := explain.Ask(demotest.Planned(t, s), s, question.Question{From: from, To: to, Via: via[to]})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	via["10.244.1.3:5432"] = "ovn-worker2"
	for _, c := range []struct{ from, to, want string }{
		{"pod/shop/api", "svc/shop/db", `
POLICIES
  pod/shop/api: egress accepted by NetworkPolicy/shop/api rule 1
    compared with the rules: tcp 10.244.2.3 > 10.244.1.3:5432
  pod/shop/db: ingress accepted by NetworkPolicy/shop/db rule 1
    compared with the rules: tcp 10.244.2.3 > 10.244.1.3:5432

First packet: `},
		{"pod/shop/other", "svc/shop/db", `
POLICIES
  pod/shop/db: ingress dropped: no rule accepts the packet; the pod is isolated by NetworkPolicy/shop/db
    compared with the rules: tcp 10.244.1.4 > 10.244.1.3:5432
    NetworkPolicy/shop/db rule 1: the port matches, the peer does not: label app is "other", not "api"

First packet: `},
		{"pod/shop/other", "svc/shop/db", `

Not delivered: ingress of Pod/shop/db: no rule of its policies accepts it; the pod is isolated by NetworkPolicy/shop/db.
`},
		{"outside/192.0.2.9", "svc/shop/db", `
    compared with the rules: tcp 100.64.0.4 > 10.244.1.3:5432; the pod sees the address of ovn-worker on the join switch, not that of the client
`},
		{"host/ovn-worker", "svc/shop/db", `
POLICIES
  pod/shop/db: ingress accepted: a pod's node always reaches it

First packet: `},
		{"pod/shop/db", "10.244.1.4:80", `
POLICIES
  pod/shop/db: egress accepted: no policy isolates the pod, and no rule matches

First packet: `},
		{"outside/192.0.2.9", "10.244.1.3:5432", `
    compared with the rules: tcp 100.64.0.5 > 10.244.1.3:5432; the pod sees the address of ovn-worker2 on the join switch, not that of the client
`},
	} {
		if text := askIn(s, c.from, c.to).Text(explain.Form{All: true, Costs: true}); !strings.Contains(text, c.want) {
			t.Errorf("%s to %s: it does not say %s\n%s", c.from, c.to, c.want, text)
		}
	}
	if text := askIn(s, "pod/shop/other",
		"10.244.1.4:80").Text(explain.Form{All: true, Costs: true}); strings.Contains(text, "POLICIES") {
		t.Errorf("no policy selects a pod of this walk:\n%s", text)
	}
	local := policed(t, "type: NodePort", "type: NodePort\n  externalTrafficPolicy: Local")
	if e := askIn(local, "outside/192.0.2.9", "svc/shop/db"); len(e.Policies) != 1 ||
		e.Policies[0].Packet.Src.String() != "192.0.2.9" || e.Policies[0].Note != "" {
		t.Errorf("under policy Local a client keeps its address: %+v", e.Policies)
	}

	dropped := askIn(s, "pod/shop/other", "svc/shop/db")
	text, err := dropped.JSON()
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Policies []struct {
			Direction, Pod, Node string
			Accepted             bool
			Isolating            []string
			Misses               []struct {
				Policy string
				Rule   int
				Point  string
			}
		}
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if p := got.Policies; len(p) != 1 || p[0].Direction != "ingress" || p[0].Pod != "pod/shop/db" || p[0].Accepted ||
		p[0].Node != "ovn-worker" || len(p[0].Isolating) != 1 || len(p[0].Misses) != 1 || p[0].Misses[0].Rule != 1 {
		t.Errorf("%s", text)
	}
	if !strings.Contains(picture.SVG(dropped), "pod/shop/db: ingress dropped: ") {
		t.Error("the picture does not have the decision")
	}

	allowed := askIn(policed(t, "podSelector: {matchLabels: {app: api}}}]",
		"podSelector: {matchLabels: {app: other}}}]"),
		"pod/shop/other", "svc/shop/db")
	if change := explain.Difference(dropped, allowed); !strings.Contains(change, "\nPOLICIES\n"+
		"- pod/shop/db: ingress dropped: no rule accepts the packet; the pod is isolated by NetworkPolicy/shop/db\n") ||
		!strings.Contains(change, "\n+ pod/shop/db: ingress accepted by NetworkPolicy/shop/db rule 1\n") {
		t.Errorf("%s", change)
	}
}

// TestClusterPolicies checks that a walk reports the decisions of policies of all tiers.
func TestClusterPolicies(t *testing.T) {
	s := readStory(t, "../../plan/testdata/cluster-network-policies.txtar", "", "")
	for _, c := range []struct{ from, to, want string }{
		{"pod/test/try", "svc/shop/db", `
  pod/shop/db: ingress dropped by ClusterNetworkPolicy/production rule 2
    compared with the rules: tcp 10.244.2.4 > 10.244.1.3:5432
`},
		{"pod/test/try", "svc/shop/db", `

Not delivered: ingress denied by ClusterNetworkPolicy/production, rule 2.
`},
		{"pod/monitoring/scraper", "10.244.1.3:9100", `
  pod/shop/db: ingress accepted by ClusterNetworkPolicy/production rule 1
`},
		{"pod/shop/api", "svc/shop/db", `
  pod/shop/api: egress accepted by ClusterNetworkPolicy/same-environment rule 1
    compared with the rules: tcp 10.244.2.3 > 10.244.1.3:5432
  pod/shop/db: ingress accepted by NetworkPolicy/shop/db rule 1
`},
		{"pod/shop/web", "192.0.2.7:443", `
  pod/shop/web: egress accepted: no policy isolates the pod, and no rule matches
`},
		{"pod/shop/web", "172.18.0.4:10250", `
  pod/shop/web: egress dropped by ClusterNetworkPolicy/protect-nodes rule 4
`},
	} {
		e, err := explain.Ask(demotest.Planned(t, s), s, question.Question{From: c.from, To: c.to})
		if err != nil {
			t.Fatal(err)
		}
		if text := e.Text(explain.Form{All: true, Costs: true}); !strings.Contains(text, c.want) {
			t.Errorf("%s to %s: it does not say %s\n%s", c.from, c.to, c.want, text)
		}
	}
}

// TestPoliciesReadBack explains a walk through States as agents read them back, in a cluster as an
// agent sends it: with all flows it is the same, and without a rule's flow there is a fault.
func TestPoliciesReadBack(t *testing.T) {
	text, err := json.Marshal(policed(t, "", ""))
	if err != nil {
		t.Fatal(err)
	}
	s, err := cluster.ReadSnapshot(text)
	if err != nil {
		t.Fatal(err)
	}
	q := question.Question{From: "pod/shop/api", To: "svc/shop/db"}
	wanted, err := explain.Ask(demotest.Planned(t, s), s, q)
	if err != nil {
		t.Fatal(err)
	}
	readBack := func(keep func(*flow.Flow) bool) *explain.Explanation {
		world := walk.World{Snapshot: s, States: map[string]datapath.State{}}
		for _, n := range s.Nodes {
			want, _ := plan.Node(s, n.Name)
			sent := want
			sent.Bridge.Flows = delta.Map[flow.ID, *flow.Flow]{}
			for id, f := range want.Bridge.Flows.All() {
				if keep(f) {
					sent.Bridge.Flows.Put(id, f)
				}
			}
			text, err := datapath.Encode(sent)
			if err != nil {
				t.Fatal(err)
			}
			var found datapath.State
			if err := datapath.Decode(text, &found); err != nil {
				t.Fatal(err)
			}
			world.States[n.Name] = datapath.Adopted(want, found)
		}
		e, err := explain.Ask(walk.New(world), s, q)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	same := readBack(func(*flow.Flow) bool { return true })
	if fault := explain.FindFault(wanted, same); fault != nil ||
		same.Text(explain.Form{All: true, Costs: true}) != wanted.Text(explain.Form{All: true, Costs: true}) {
		t.Errorf("%v\n%s", fault, same.Text(explain.Form{All: true, Costs: true}))
	}
	broken := readBack(func(f *flow.Flow) bool { return f.Table != pipeline.SvcIngressRule || f.Match.ConjID == 0 })
	if fault := explain.FindFault(wanted, broken); fault == nil || !strings.HasSuffix(fault.Stage, " IngressRule") ||
		broken.Good() {
		t.Errorf("%v\n%s", fault, broken.Text(explain.Form{All: true, Costs: true}))
	}
}

// The rule of a policy explains only a packet that policies drop. Flows of policies may be missing,
// and the packet lost elsewhere.
func TestDenialNeedsCause(t *testing.T) {
	e := &explain.Explanation{Trace: walk.Trace{Verdict: walk.Verdict{Reason: "no route"}},
		Policies: []why.Decision{{Verdict: policy.Verdict{Reason: policy.ByRule, Rule: 2}}}}
	for cause, want := range map[packet.Cause]string{
		packet.ByPolicies: "Not delivered: no route, rule 3.", packet.NoRoute: "Not delivered: no route.",
	} {
		e.Trace.Verdict.Cause = cause
		if got := e.Sentence(); got != want {
			t.Errorf("cause %d: %q, not %q", cause, got, want)
		}
	}
}
