package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"
)

// TestPolicies lists the policies of pods of the story about NetworkPolicies.
func TestPolicies(t *testing.T) {
	story, err := txtar.ParseFile("../../plan/testdata/network-policies.txtar")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), story.Files[0].Data, 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		c := root()
		c.SetArgs(append([]string{"policies", "-f", dir}, args...))
		c.SetOut(&out)
		err := c.Execute()
		return out.String(), err
	}
	for pod, want := range map[string]string{
		"shop/db": `pod/shop/db on node ovn-worker, 10.244.1.3

INGRESS  isolated: a packet needs a rule that accepts it
  NetworkPolicy/shop/db
    rule 1: pods with app=api in namespace shop (1 pod, 0 ranges); sql/TCP (5432)
    rule 2: 192.0.2.0/25 (0 pods, 1 range); 8000-8010/TCP

EGRESS  not isolated
`,
		"shop/other": `pod/shop/other on node ovn-worker, 10.244.1.4

INGRESS  not isolated

EGRESS  not isolated
`,
	} {
		if got, err := run(pod); err != nil || got != want {
			t.Errorf("%s (error %v):\n%s", pod, err, got)
		}
	}
	text, err := run("shop/api", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Pod      string
		Enforced bool
		Ingress  struct{ Isolated bool }
		Egress   struct {
			Isolated bool
			Policies []struct {
				Policy string
				Rules  []struct{ Peers, Ports []string }
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if !got.Enforced || got.Ingress.Isolated || !got.Egress.Isolated || len(got.Egress.Policies) != 1 ||
		len(got.Egress.Policies[0].Rules) != 2 || got.Egress.Policies[0].Rules[1].Ports[0] != "53/UDP" {
		t.Errorf("%s", text)
	}
	asYAML, err := run("shop/api", "-o", "yaml")
	if err != nil {
		t.Fatal(err)
	}
	if converted, err := yaml.YAMLToJSON([]byte(asYAML)); err != nil || !sameJSON(converted, []byte(text)) {
		t.Errorf("%v: the YAML is not the JSON:\n%s\n%s", err, asYAML, text)
	}
	const table = `POD      DIRECTION  POLICY                 RULE  ACTION  PEERS                                PORTS           PODS  RANGES
shop/db  ingress    NetworkPolicy/shop/db  1     accept  pods with app=api in namespace shop  sql/TCP (5432)  1     0
shop/db  ingress    NetworkPolicy/shop/db  2     accept  192.0.2.0/25                         8000-8010/TCP   0     1
`
	if got, err := run("shop/db", "-o", "wide"); err != nil || got != table {
		t.Errorf("%v:\n%s", err, got)
	}
	for args, want := range map[string]string{"db": `no Pod "default/db"`, "shop/db -o xml": "--output"} {
		if _, err := run(strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// sameJSON reports whether two texts have the same value.
func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// TestClusterPolicies lists the policies of a pod of the story about ClusterNetworkPolicies.
func TestClusterPolicies(t *testing.T) {
	story, err := txtar.ParseFile("../../plan/testdata/cluster-network-policies.txtar")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), story.Files[0].Data, 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c := root()
	c.SetArgs([]string{"policies", "-f", dir, "shop/db"})
	c.SetOut(&out)
	if err := c.Execute(); err != nil {
		t.Fatal(err)
	}
	const want = `pod/shop/db on node ovn-worker, 10.244.1.3

INGRESS  isolated: a packet needs a rule that accepts it
  ClusterNetworkPolicy/production (tier Admin, priority 10)
    rule 1: all pods in namespaces with role=monitoring (1 pod, 0 ranges); 9100/TCP
    rule 2: deny all pods in namespaces with env=test (1 pod, 0 ranges); all ports and protocols
  NetworkPolicy/shop/db
    rule 1: pods with app=api in namespace shop (1 pod, 0 ranges); sql/TCP (5432)
    rule 2: 192.0.2.0/25 (0 pods, 1 range); 8000-8010/TCP
  ClusterNetworkPolicy/same-environment (tier Baseline, priority 10, not used: a NetworkPolicy isolates the pod)
    rule 1: all pods in namespaces with env=prod (3 pods, 0 ranges); all ports and protocols
    rule 2: deny all pods in all namespaces (5 pods, 0 ranges); all ports and protocols

EGRESS  isolated: a packet needs a rule that accepts it
  ClusterNetworkPolicy/protect-nodes (tier Admin, priority 20)
    rule 1: all pods in namespaces with role=dns (0 pods, 0 ranges); 53/UDP
    rule 2: pass all pods in all namespaces (5 pods, 0 ranges); all ports and protocols
    rule 3: deny 169.254.169.254/32 (0 pods, 1 range); all ports and protocols
    rule 4: deny all nodes (0 pods, 2 ranges); 10250/TCP
  NetworkPolicy/shop/db
    rule 1: every address; 53/UDP
  ClusterNetworkPolicy/same-environment (tier Baseline, priority 10, not used: a NetworkPolicy isolates the pod)
    rule 1: all pods in namespaces with env=prod (3 pods, 0 ranges); all ports and protocols
    rule 2: deny all pods in all namespaces (5 pods, 0 ranges); all ports and protocols
`
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
}

// TestPolicyExamples: the policies of the user page are those of examples/network-policy.
func TestPolicyExamples(t *testing.T) {
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page, manifests := read("docs/user/network-policy.md"), read("examples/network-policy/policies.yaml")
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(page, -1)
	for _, m := range blocks {
		if !strings.Contains(manifests, m[1]) {
			t.Errorf("examples/network-policy/policies.yaml does not have\n%s", m[1])
		}
	}
	if shown, all := strings.Count(page, "kind: NetworkPolicy"), strings.Count(manifests, "kind: "); shown != all {
		t.Errorf("the page has %d of %d policies", shown, all)
	}
}
