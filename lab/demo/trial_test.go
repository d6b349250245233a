package demo

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"hairpin/lab/demo/nodeport"
)

var update = flag.Bool("update", false, "rewrite the tables in docs")

// Tables in docs are generated from the code (`go test ./lab/demo -run Documents -update`).
func TestDocuments(t *testing.T) {
	for file, table := range map[string]string{
		"../../docs/user/node-ports.md":         nodeport.Markdown(),
		"../../docs/reference/compatibility.md": exceptions(), // the trials that are not tried, and why
		"../../docs/development/attacks.md":     attacksTable(),
	} {
		const begin, end = "<!-- table -->\n", "<!-- end -->\n"
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		head, rest, ok := strings.Cut(string(text), begin)
		_, tail, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("%s has no place for the table", file)
		}
		want := head + begin + table + end + tail
		if want == string(text) {
			continue
		}
		if !*update {
			t.Errorf("the table in %s is not that of the code (-update rewrites it)", file)
		} else if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// limits describes to users what fails in a group of trials, in the order of the table. It is
// read-only.
var limits = []struct{ group, fails string }{
	{"policy", "policies are not enforced, or drop permitted packets"},
	{"clash", "connections with the same source port do not get distinct ports"},
	{"fragments", "UDP datagrams larger than the MTU, which are sent in fragments, are lost"},
	{"whole", "UDP datagrams in one packet and in fragments arrive from different source ports"},
	{"path mtu", "the sender does not learn a smaller path MTU"},
	{"download", "a stream through a load balancer stops when the path MTU becomes smaller"},
	{"mtu between nodes", "TCP between pods stops when the path MTU between their nodes becomes smaller"},
	{"pod mtu", "the hosts of other nodes use the pods' MTU for this node"},
	{"long packets", "hosts use the pods' MTU for each other"},
	{"long answers", "long answers from a machine without path MTU discovery to a pod with an EgressIP are lost"},
}

// exceptions returns the table of trials that do not apply to every datapath and mode.
func exceptions() string {
	type key struct {
		limit      int
		where, why string
	}
	var order []key
	count := map[key]int{}
	add := func(where, why, name string) {
		k := key{-1, where, why}
		for i, l := range limits {
			if strings.HasPrefix(name, l.group) {
				k.limit = i
			}
		}
		if k.limit < 0 {
			panic("no limit describes the trial " + name)
		}
		if count[k]++; !slices.Contains(order, k) {
			order = append(order, k)
		}
	}
	for _, x := range Trials() {
		for _, e := range x.Not {
			if e.Why != noDefinition.Why { // of the lab, not of Hairpin
				add(e.In.name, e.Why, x.Name)
			}
		}
	}
	var b strings.Builder
	slices.SortStableFunc(order, func(a, b key) int { return a.limit - b.limit })
	b.WriteString("| what fails | where | why | trials |\n|---|---|---|---|\n")
	for _, k := range order {
		l := limits[k.limit]
		fmt.Fprintf(&b, "| %s | %s | %s | %d of `%s` |\n", l.fails, k.where, k.why, count[k], l.group)
	}
	return b.String()
}

// Exceptions apply if all their conditions do.
func TestExceptions(t *testing.T) {
	list := Trials()
	for _, c := range []struct {
		name  string
		lab   world
		tried bool
	}{
		{"fragments host-a hostother ClusterIP udp4", world{shared: true}, true},
		{"fragments host-a hostother ClusterIP udp4", world{nodeLocal: true}, true},
		{"fragments host-a hostother ClusterIP udp4", world{shared: true, nodeLocal: true}, false},
		{"fragments host-a hostother ClusterIP udp4", world{shared: true, nodeLocal: true, every: true}, true},
		{"fragments host-a hostother ClusterIP udp4",
			world{userspace: true, shared: true, nodeLocal: true, openvswitch: "4.0.0"}, true},
		{"fragments host-a hostother ClusterIP udp4", world{userspace: true, openvswitch: "3.5.0"}, false},
		{"fragments host-a hostother ClusterIP udp6",
			world{userspace: true, shared: true, nodeLocal: true, openvswitch: "4.0.0"}, false},
		{"fragments host-a hostother ClusterIP udp6", world{shared: true, nodeLocal: true}, true},
	} {
		i := slices.IndexFunc(list, func(x Trial) bool { return x.Name == c.name })
		if i < 0 {
			t.Fatalf("no trial %q", c.name)
		}
		if why := c.lab.exception(list[i]); (why == "") != c.tried {
			t.Errorf("%s in %+v: %q", c.name, c.lab, why)
		}
	}
}

// Every trial has a unique name, so that --only finds it.
func TestTrialNames(t *testing.T) {
	seen := map[string]bool{}
	for _, x := range Trials() {
		if seen[x.Name] {
			t.Errorf("%q is given twice", x.Name)
		}
		seen[x.Name] = true
	}
	for _, x := range Attacks() {
		if seen[x.name()] {
			t.Errorf("%q is given twice", x.name())
		}
		seen[x.name()] = true
	}
	t.Logf("%d trials and attacks", len(seen))
}
