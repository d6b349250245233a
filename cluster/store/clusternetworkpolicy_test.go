package store_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"hairpin/api/clusternetworkpolicy"
	"hairpin/cluster"
)

// clusterNetworkPolicy makes the ClusterNetworkPolicy of a spec in YAML.
func clusterNetworkPolicy(t testing.TB, name, spec string) *clusternetworkpolicy.ClusterNetworkPolicy {
	t.Helper()
	j, err := yaml.YAMLToJSON([]byte(spec))
	if err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	return &clusternetworkpolicy.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: j}
}

// clusterText returns a Policy in one line: "Admin 10 [app In [db]]/[] ingress Deny [...] on all".
func clusterText(p *cluster.Policy) string {
	out := fmt.Sprintf("%s %d %s/%s", map[cluster.PolicyTier]string{cluster.TierAdmin: "Admin",
		cluster.TierBaseline: "Baseline"}[p.Tier], p.Priority, selectorText(p.Subject.Namespaces),
		selectorText(p.Subject.Pods))
	for _, d := range []struct {
		name string
		of   cluster.PolicyDirection
	}{{"ingress", p.Ingress}, {"egress", p.Egress}} {
		for _, r := range d.of.Rules {
			action := []string{cluster.Accept: "Accept", cluster.Deny: "Deny", cluster.Pass: "Pass"}[r.Action]
			out += fmt.Sprintf(" %s %s [%s on %s]", d.name, action, peersText(r), portsText(r))
		}
		if d.of.Isolates {
			out += " isolates"
		}
	}
	return out
}

// TestClusterNetworkPolicy: every form of a ClusterNetworkPolicy, valid and invalid, gives these
// facts.
func TestClusterNetworkPolicy(t *testing.T) {
	const (
		head    = `tier: Admin, priority: 10, subject: {namespaces: {}}`
		nothing = ": the rule matches nothing"
		denies  = ": the rule denies everything"
		all     = `{namespaces: {}}`
		none    = "Admin 10 []/[]"
	)
	for _, c := range []struct {
		spec, want string
		problems   []string // without the owner
	}{
		// tiers, priorities, subjects
		{head, none, nil},
		{`tier: Baseline, priority: 1000, subject: {namespaces: {matchLabels: {a: b}}}`, "Baseline 1000 [a In [b]]/[]",
			nil},
		{`tier: Admin, priority: 0, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {a: b}}}}`,
			"Admin 0 []/[a In [b]]", nil},
		{`tier: Admin, priority: 0, subject: {pods: {podSelector: {matchLabels: {a: b}}}}`, "Admin 0 []/[a In [b]]", nil},
		{`tier: Admin, priority: 0, subject: {pods: {namespaceSelector: {}}}`, "Admin 0 []/[]",
			[]string{`spec.subject: podSelector is missing: the policy selects no pod`}},
		{`tier: Other, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [` + all +
			`]}, {action: Accept, from: [` + all + `]}]`,
			"Admin 1 []/[] ingress Deny [all on all] ingress Accept [ on ]",
			[]string{`spec.tier: "Other" is neither Admin nor Baseline: in the tier Admin, rules that accept match nothing, and all others deny everything`}},
		{`tier: Admin, priority: 1001, subject: {namespaces: {}}, egress: [{action: Pass, to: [` + all + `]}]`,
			"Admin 0 []/[] egress Deny [all on all]",
			[]string{`spec.priority: is not a number from 0 to 1000: rules that accept match nothing, and all others deny everything`}},
		{`tier: Admin, priority: 1, subject: {}, ingress: [{action: Deny, from: [` + all + `]}]`, "Admin 0 []/[]",
			[]string{`spec.subject: has no field that is known: the policy selects no pod`}},
		{`tier: Admin, priority: 1, subject: {nodes: {}}`, "Admin 0 []/[]",
			[]string{`spec.subject: is neither namespaces nor pods: the policy selects no pod`}},
		{`tier: Admin, priority: 1, subject: {namespaces: {matchExpressions: [{key: a, operator: Near}]}}`,
			"Admin 0 []/[]",
			[]string{`spec.subject: is not a label selector: "Near" is not a valid label selector operator: the policy selects no pod`}},
		{`tier: Admin, priority: 1, subject: {namespaces: {}, pods: {}}`, "Admin 0 []/[]",
			[]string{`spec.subject: has more than one field: namespaces, pods: the policy selects no pod`}},
		{`tier: [Admin]`, "Admin 0 []/[]", []string{`spec: json: cannot unmarshal array into Go struct field ` +
			`clusterNetworkPolicySpec.tier of type string: the policy has no effect`}},
		// actions and peers
		{head + `, ingress: [{action: Accept, from: [` + all +
			`]}, {action: Deny, from: [{pods: {namespaceSelector: {matchLabels: {a: b}}, podSelector: {}}}]}, {action: Pass, from: [` + all + `]}]`,
			none + " ingress Accept [[]/[] on all] ingress Deny [[a In [b]]/[] on all] ingress Pass [[]/[] on all]",
			nil},
		{head +
			`, egress: [{action: Deny, to: [{networks: [10.1.0.0/16, 10.0.0.0/8, "fd00::/8"]}, {nodes: {matchLabels: {a: b}}}]}]`,
			none + " egress Deny [10.0.0.0/8 fd00::/8, nodes [a In [b]] on all]", nil},
		{head + `, ingress: [{action: Log, from: [` + all + `]}]`, none + " ingress Deny [all on all]",
			[]string{`spec.ingress[0].action: "Log" is none of Accept, Deny and Pass` + denies}},
		{head +
			`, egress: [{action: Accept, to: [{domainNames: [example.org]}]}, {action: Pass, to: [{domainNames: [example.org]}]}]`,
			none + " egress Accept [ on ] egress Deny [all on all]",
			[]string{`spec.egress[0].to[0].domainNames: is a kind of peer that is not supported` + nothing,
				`spec.egress[1].to[0].domainNames: is a kind of peer that is not supported` + denies}},
		{head + `, ingress: [{action: Deny, from: [` + all + `, {networks: [10.0.0.0/8]}]}]`,
			none + " ingress Deny [all on all]",
			[]string{`spec.ingress[0].from[1].networks: is a kind of peer that is not supported` + denies}},
		{head + `, ingress: [{action: Deny, from: [{}]}, {action: Accept, from: [` + all + `, {}]}, {action: Deny}]`,
			none + " ingress Deny [all on all] ingress Accept [ on ] ingress Deny [all on all]",
			[]string{`spec.ingress[0].from[0]: has no field that is known` + denies,
				`spec.ingress[1].from[1]: has no field that is known` + nothing,
				`spec.ingress[2].from: has no peer` + denies}},
		{head + `, egress: [{action: Accept, to: [{networks: [10.0.0.0/8, "10.0.0.0"]}]}]`, none +
			" egress Accept [ on ]",
			[]string{`spec.egress[0].to[0].networks: "10.0.0.0" is not an address range` + nothing}},
		{head + `, egress: [{action: Deny, to: [{namespaces: {matchNames: [a]}}]}]`, none + " egress Deny [all on all]",
			[]string{`spec.egress[0].to[0].namespaces: unknown field "matchNames"` + denies}},
		{head + `, egress: [{action: Deny, to: [{namespaces: null}]}]`, none + " egress Deny [all on all]",
			[]string{`spec.egress[0].to[0].namespaces: is missing` + denies}},
		// protocols
		{head + `, ingress: [{action: Accept, from: [` + all +
			`], protocols: [{tcp: {destinationPort: {number: 80}}}, {udp: {destinationPort: {range: {start: 1, end: 9}}}}, {sctp: {destinationPort: {number: 7}}}]}]`,
			none + " ingress Accept [[]/[] on tcp/80, udp/1-9, sctp/7]", nil},
		{head + `, ingress: [{action: Accept, from: [` + all + `], protocols: [{destinationNamedPort: web}]}]`,
			none + " ingress Accept [[]/[] on tcp/web, udp/web, sctp/web]", nil},
		{head + `, ingress: [{action: Deny, from: [` + all + `], protocols: [{quic: {}}]}, {action: Deny, from: [` +
			all + `], protocols: []}]`,
			none + " ingress Deny [all on all] ingress Deny [all on all]",
			[]string{`spec.ingress[0].protocols[0].quic: is a kind of protocol that is not supported` + denies,
				`spec.ingress[1].protocols: is empty` + denies}},
		{head + `, ingress: [{action: Accept, from: [` + all +
			`], protocols: [{tcp: {}}, {tcp: {destinationPort: {number: 0}}}, {tcp: {destinationPort: {range: {start: 9, end: 8}}}}, {destinationNamedPort: "-"}]}]`,
			none + " ingress Accept [ on ]",
			[]string{`spec.ingress[0].protocols[0].tcp: has not exactly one of destinationPort.number and destinationPort.range` + nothing,
				`spec.ingress[0].protocols[1].tcp: destinationPort: 0 to 0 is not a range of port numbers (1 to 65535)` + nothing,
				`spec.ingress[0].protocols[2].tcp: destinationPort: 9 to 8 is not a range of port numbers (1 to 65535)` + nothing,
				`spec.ingress[0].protocols[3].destinationNamedPort: "-" is not the name of a port: must contain at least one letter (a-z)` + nothing}},
		{head + `, egress: [{action: Accept, from: [` + all + `], to: [` + all + `]}]`, none + " egress Accept [ on ]",
			[]string{`spec.egress[0].from: belongs to the other direction` + nothing}},
	} {
		s := storeOf(clusterNetworkPolicy(t, "policy", "{"+c.spec+"}")).Snapshot()
		if len(s.Policies) != 1 {
			t.Fatalf("%s: %d policies", c.spec, len(s.Policies))
		}
		if got := clusterText(s.Policies[0]); got != c.want {
			t.Errorf("%s:\n%s\nwant:\n%s", c.spec, got, c.want)
		}
		var got []string
		for _, p := range s.Problems {
			got = append(got, strings.TrimPrefix(p.Error(), "ClusterNetworkPolicy/policy: "))
		}
		slices.Sort(got)
		slices.Sort(c.problems)
		if !slices.Equal(got, c.problems) {
			t.Errorf("%s:\n%s\nwant:\n%s", c.spec, strings.Join(got, "\n"), strings.Join(c.problems, "\n"))
		}
	}
}

// TestTooManyRules: the first rules of a long list keep their places, and the others fail closed.
func TestTooManyRules(t *testing.T) {
	for action, want := range map[string]cluster.PolicyAction{"Accept": cluster.Accept, "Pass": cluster.Deny} {
		rules := strings.Repeat(`{action: `+action+`, from: [{namespaces: {}}]},`, 40)
		s := storeOf(clusterNetworkPolicy(t, "policy", `{tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [`+
			rules+`]}`)).Snapshot()
		list := s.Policies[0].Ingress.Rules
		last := list[len(list)-1]
		if len(list) != cluster.MaxRules || last.Action != want || last.AllPeers != (want == cluster.Deny) ||
			len(last.Peers) > 0 || len(list[0].Peers) != 1 || len(s.Problems) != 1 {
			t.Errorf("%s: %d rules, the last is %+v, problems %v", action, len(list), last, s.Problems)
		}
	}
}

// TestSamePriority: two policies of one tier and priority are reported, unless no packet can match
// rules of both.
func TestSamePriority(t *testing.T) {
	spec := func(tier string, priority int, app, direction string) string {
		return fmt.Sprintf(`{tier: %s, priority: %d, subject: {namespaces: {matchLabels: {app: %s}}},
			%s: [{action: Deny, %s: [{namespaces: {}}]}]}`, tier, priority, app, direction,
			map[string]string{"ingress": "from", "egress": "to"}[direction])
	}
	for _, c := range []struct {
		other string
		want  int
	}{
		{spec("Admin", 7, "a", "ingress"), 2}, {spec("Admin", 8, "a", "ingress"), 0},
		{spec("Baseline", 7, "a", "ingress"), 0}, {spec("Admin", 7, "b", "ingress"), 0},
		{spec("Admin", 7, "a", "egress"), 0},
	} {
		s := storeOf(clusterNetworkPolicy(t, "x", spec("Admin", 7, "a", "ingress")),
			clusterNetworkPolicy(t, "y", c.other))
		if got := s.Snapshot().Problems; len(got) != c.want {
			t.Errorf("%s: problems %v", c.other, got)
		}
		s.Delete(clusterNetworkPolicy(t, "y", c.other))
		if got := s.Snapshot(); len(got.Problems) > 0 || len(got.Policies) != 1 {
			t.Errorf("%s: without the other policy: problems %v", c.other, got.Problems)
		}
	}
}

// TestClusterNetworkPolicyFailsClosed: after any change of a valid spec, each rule is as it was
// written, or denies everything, or accepts nothing; and each that is not as written has a problem.
func TestClusterNetworkPolicyFailsClosed(t *testing.T) {
	const spec = `{tier: Admin, priority: 10, subject: {pods: {namespaceSelector: {}, podSelector: {}}},
		ingress: [{action: ACTION, name: x, from: [{namespaces: {matchLabels: {a: b}}}, {pods: {namespaceSelector: {}, podSelector: {}}}],
			protocols: [{tcp: {destinationPort: {number: 80}}}, {udp: {destinationPort: {range: {start: 1, end: 9}}}}, {destinationNamedPort: web}]}],
		egress: [{action: ACTION, to: [{networks: [10.0.0.0/8]}, {nodes: {}}, {namespaces: {}}]}]}`
	rapid.Check(t, func(t *rapid.T) {
		action := rapid.SampledFrom([]string{"Accept", "Deny", "Pass"}).Draw(t, "action")
		var v any
		if err := yaml.Unmarshal([]byte(strings.ReplaceAll(spec, "ACTION", action)), &v); err != nil {
			t.Fatal(err)
		}
		whole, _ := json.Marshal(v)
		object := func(spec []byte) *clusternetworkpolicy.ClusterNetworkPolicy {
			return &clusternetworkpolicy.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: spec}
		}
		good := storeOf(object(whole)).Snapshot()
		if len(good.Problems) > 0 {
			t.Fatal(good.Problems)
		}
		changed, _ := json.Marshal(mutate(t, v))
		s := storeOf(object(changed)).Snapshot()
		if len(s.Policies) != 1 {
			t.Fatalf("%s: %d policies", changed, len(s.Policies))
		}
		same := reflect.DeepEqual(s.Policies, good.Policies)
		if p := s.Policies[0]; !reflect.DeepEqual(p.Subject, good.Policies[0].Subject) || p.Priority != 10 {
			return // another policy
		}
		for i, rules := range [][]cluster.PolicyRule{s.Policies[0].Ingress.Rules, s.Policies[0].Egress.Rules} {
			was := [][]cluster.PolicyRule{good.Policies[0].Ingress.Rules, good.Policies[0].Egress.Rules}[i]
			for _, r := range rules {
				closed := reflect.DeepEqual(r, cluster.PolicyRule{}) ||
					reflect.DeepEqual(r, cluster.PolicyRule{Action: cluster.Deny, AllPeers: true, AllPorts: true})
				if closed && len(s.Problems) == 0 {
					t.Fatalf("%s: %+v without a problem", changed, r)
				}
				if !closed && len(s.Problems) > 0 && !reflect.DeepEqual(r, was[0]) {
					t.Fatalf("%s: a rule with problems %v is %+v", changed, s.Problems, r)
				}
			}
		}
		if same != (string(changed) == string(whole)) && same && len(s.Problems) > 0 {
			t.Fatalf("%s: problems %v, but the same facts", changed, s.Problems)
		}
	})
}

// mutate returns a decoded JSON value with one part changed.
func mutate(t *rapid.T, v any) any {
	odd := func() any {
		return rapid.SampledFrom([]any{nil, "x", -1.0, 70000.0, true, []any{}, map[string]any{},
			map[string]any{"x": "y"}, []any{map[string]any{}}}).Draw(t, "odd")
	}
	if rapid.IntRange(0, 3).Draw(t, "here") == 0 {
		return odd()
	}
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 || rapid.IntRange(0, 3).Draw(t, "add") == 0 {
			v[rapid.SampledFrom([]string{"x", "namespaces", "to", "from"}).Draw(t, "field")] = odd()
			return v
		}
		var keys []string
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		k := rapid.SampledFrom(keys).Draw(t, "key")
		if rapid.IntRange(0, 4).Draw(t, "delete") == 0 {
			delete(v, k)
		} else {
			v[k] = mutate(t, v[k])
		}
		return v
	case []any:
		if len(v) > 0 {
			i := rapid.IntRange(0, len(v)-1).Draw(t, "index")
			v[i] = mutate(t, v[i])
			return v
		}
	}
	return odd()
}

// FuzzClusterNetworkPolicy: any spec is read, affects no other object, and has at most so many
// rules.
func FuzzClusterNetworkPolicy(f *testing.F) {
	f.Add(`{"tier":"Admin","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}`)
	f.Add(`{"egress":[{"to":[{"networks":["::ffff:10.0.0.0/8"]}],"protocols":[null,{"tcp":null}]}],"subject":{"pods":null}}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, spec string) {
		s := storeOf(&clusternetworkpolicy.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: json.RawMessage(spec)}, namespace("default", nil)).Snapshot()
		if len(s.Policies) != 1 || len(s.Namespaces) != 1 {
			t.Fatalf("%d policies, %d namespaces", len(s.Policies), len(s.Namespaces))
		}
		p := s.Policies[0]
		if p.Tier == cluster.TierNetworkPolicy || p.Priority < 0 || p.Priority > cluster.MaxPriority ||
			p.Ingress.Isolates || p.Egress.Isolates || len(p.Ingress.Rules) > cluster.MaxRules ||
			len(p.Egress.Rules) > cluster.MaxRules {
			t.Fatalf("%+v", p)
		}
		for _, x := range s.Problems {
			if x.Owner != p.Owner || len(x.Message) > 1100 {
				t.Fatalf("%v", x)
			}
		}
	})
}
