package agent_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/plan/assign"
	"hairpin/watch"
)

// egressWorld has the objects of the test. From these alone it computes the sources that an
// external server may see.
type egressWorld struct {
	dir   string // of the manifests
	nodes string // the original nodes.yaml
	step  int

	prod     bool // label of the namespace
	team     map[string]string
	at       map[string]string       // pod to node
	ips      map[string][]netip.Addr // of existing pods
	can      map[string]bool         // nodes with the label
	ready    map[string]bool
	leaving  map[string]bool
	eips     map[string]*egressSpec
	assigned map[string][]cluster.Assignment // by EgressIP
}

// egressSpec is the spec of an EgressIP.
type egressSpec struct {
	addresses []string
	team      string // empty = all pods
	prod      bool   // only of namespaces with the label
}

// pools are the addresses of each EgressIP, the older one first.
var pools = map[string][]string{
	"first":  {"172.18.0.33", "fc00:f853:ccd::33", "10.10.10.44", "fd10::44"},
	"second": {"10.10.10.33", "fd10::33", "172.18.0.44", "fc00:f853:ccd::44"},
}

func newEgressWorld(t *testing.T, l *lab.Lab) *egressWorld {
	t.Helper()
	w := &egressWorld{
		dir: filepath.Join(l.Dir(), "manifests"), prod: true, team: map[string]string{}, at: map[string]string{},
		ips: map[string][]netip.Addr{},
		can: map[string]bool{}, ready: map[string]bool{}, leaving: map[string]bool{}, eips: map[string]*egressSpec{},
		assigned: map[string][]cluster.Assignment{},
	}
	text, err := os.ReadFile(filepath.Join(w.dir, "nodes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	w.nodes = string(text)
	for _, n := range l.Nodes() {
		w.can[n.Name()], w.ready[n.Name()] = true, true
		for i, p := range n.Pods() {
			w.at[p.Name()], w.ips[p.Name()] = n.Name(), p.IPs()
			w.team[p.Name()] = []string{"red", "blue"}[i%2]
		}
	}
	return w
}

// change makes a random change of objects and describes it. It does not add or remove pods.
func (w *egressWorld) change(r *rand.Rand) string {
	pick := func(m map[string]bool) string { return slices.Sorted(keys(m))[r.IntN(len(m))] }
	switch r.IntN(8) {
	case 0:
		n := pick(w.can)
		w.can[n] = !w.can[n]
		return fmt.Sprintf("label of %s: %t", n, w.can[n])
	case 1:
		n := pick(w.ready)
		w.ready[n] = !w.ready[n]
		return fmt.Sprintf("%s ready: %t", n, w.ready[n])
	case 2:
		n := pick(w.can)
		w.leaving[n] = !w.leaving[n]
		return fmt.Sprintf("%s cordoned: %t", n, w.leaving[n])
	case 3:
		w.prod = !w.prod
		return fmt.Sprintf("namespace in production: %t", w.prod)
	case 4:
		p := slices.Sorted(keys(w.team))[r.IntN(len(w.team))]
		w.team[p] = []string{"red", "blue", "green"}[r.IntN(3)]
		return p + " is in team " + w.team[p]
	default:
		name := []string{"first", "second"}[r.IntN(2)]
		if w.eips[name] != nil && r.IntN(4) == 0 {
			delete(w.eips, name)
			delete(w.assigned, name)
			return "EgressIP " + name + " deleted"
		}
		e := &egressSpec{team: []string{"", "red", "blue"}[r.IntN(3)], prod: r.IntN(4) == 0}
		for _, a := range pools[name] {
			if r.IntN(3) > 0 || len(e.addresses) == 0 {
				e.addresses = append(e.addresses, a)
			}
		}
		w.eips[name] = e
		return fmt.Sprintf("EgressIP %s: %v, team %q, production only: %t", name, e.addresses, e.team, e.prod)
	}
}

func keys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// decide acts as the controller, and returns the EgressIPs with their new status.
func (w *egressWorld) decide(t *testing.T) string {
	t.Helper()
	aside := *w
	aside.dir = t.TempDir()
	aside.write(t, "nodes.yaml", w.nodesText())
	aside.write(t, "egress.yaml", w.egress())
	s, err := watch.ReadFiles(aside.dir, cluster.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range assign.Addresses(s, assign.Observed{}) {
		w.assigned[a.EgressIP.Owner.Name] = a.Items
	}
	return w.egress()
}

func (w *egressWorld) write(t *testing.T, name, text string) {
	t.Helper()
	fresh := filepath.Join(w.dir, ".new")
	err := os.WriteFile(fresh, []byte(text), 0o644)
	if err == nil {
		err = os.Rename(fresh, filepath.Join(w.dir, name))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// nodesText returns the Nodes as a kubelet, an agent and an administrator would write them.
func (w *egressWorld) nodesText() string {
	docs := strings.Split(w.nodes, "\n---\n")
	for i, d := range docs {
		for n, can := range w.can {
			if !strings.Contains(d, "\n  name: "+n+"\n") {
				continue
			}
			if can {
				d = strings.Replace(d, "  labels:\n", "  labels:\n    k8s.ovn.org/egress-assignable: \"\"\n", 1)
			}
			if octet := map[string]int{"node-b": 4, "node-c": 5}[n]; octet != 0 {
				d = strings.Replace(d, "  annotations:\n",
					fmt.Sprintf("  annotations:\n    k8s.ovn.org/host-links: '[{\"name\": \"eth1\", \"index\": 9, "+
						"\"ip-addresses\": [\"10.10.10.%d/24\", \"fd10::%d/64\"]}]'\n", octet, octet), 1)
			}
			if !w.ready[n] {
				d = strings.Replace(d, `status: "True"`, `status: "False"`, 1)
			}
			if w.leaving[n] {
				d = strings.Replace(d, "\nspec:\n", "\nspec:\n  unschedulable: true\n", 1)
			}
		}
		docs[i] = d
	}
	return strings.Join(docs, "\n---\n")
}

func (w *egressWorld) podsText() string {
	var b strings.Builder
	for p, node := range w.at {
		fmt.Fprintf(&b,
			"---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: default, labels: {team: "+
				"%s}}\nspec: {nodeName: %s}\n", p, w.team[p], node)
		for i, ip := range w.ips[p] {
			fmt.Fprintf(&b, "%s  - ip: %q\n", map[bool]string{true: "status:\n  podIPs:\n"}[i == 0], ip)
		}
	}
	return b.String()
}

// egress returns the Namespace, the EgressIPs with their status, and an invalid one: an agent that
// reports that one has read the others.
func (w *egressWorld) egress() string {
	var b strings.Builder
	env := map[bool]string{true: "prod", false: "dev"}
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Namespace\nmetadata: {name: default, labels: {env: %s}}\n", env[w.prod])
	for name, e := range w.eips {
		created := map[string]int{"first": 1, "second": 2}[name]
		fmt.Fprintf(&b,
			"---\napiVersion: k8s.ovn.org/v1\nkind: EgressIP\nmetadata: {name: %s, creationTimestamp: "+
				"\"2026-01-0%dT00:00:00Z\"}\nspec:\n  egressIPs: [\"%s\"]\n", name, created,
			strings.Join(e.addresses, `", "`))
		fmt.Fprintf(&b, "  namespaceSelector: {%s}\n  podSelector: {%s}\nstatus:\n  items:\n",
			map[bool]string{true: "matchLabels: {env: prod}"}[e.prod],
			map[bool]string{true: "matchLabels: {team: " + e.team + "}"}[e.team != ""])
		for _, a := range w.assigned[name] {
			fmt.Fprintf(&b, "  - {egressIP: %q, node: %s}\n", a.Address, a.Node)
		}
	}
	fmt.Fprintf(&b,
		"---\napiVersion: k8s.ovn.org/v1\nkind: EgressIP\nmetadata: {name: %s}\nspec: {egressIPs: [none], "+
			"namespaceSelector: {}}\n", w.marker())
	return b.String()
}

func (w *egressWorld) marker() string { return fmt.Sprintf("step-%d-", w.step) }

// allowed returns the allowed sources of a pod, for a family.
func (w *egressWorld) allowed(pod string, f cluster.Family) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, name := range []string{"first", "second"} {
		e := w.eips[name]
		if e == nil || e.prod && !w.prod || e.team != "" && e.team != w.team[pod] {
			continue
		}
		for _, a := range w.assigned[name] {
			if cluster.FamilyOf(a.Address) == f {
				out[a.Address] = true
			}
		}
		if len(out) > 0 {
			return out
		}
		break // the older one has precedence, and has no address of the family
	}
	octet := map[string]int{"node-a": 3, "node-b": 4, "node-c": 5}[w.at[pod]]
	for _, text := range []string{"172.18.0.%d", "10.10.10.%d", "fc00:f853:ccd::%d", "fd10::%d"} {
		if a := netip.MustParseAddr(fmt.Sprintf(text, octet)); cluster.FamilyOf(a) == f {
			out[a] = true
		}
	}
	return out
}
