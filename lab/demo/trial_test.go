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

// limits describes to users what a group of trials tries. It is read-only.
var limits = map[string]string{
	"fragments":         "datagrams of more than the MTU, in fragments",
	"clash":             "distinct ports for connections with the same source port",
	"policy":            "enforcement of policies",
	"mtu of pods":       "other nodes' hosts keep a larger MTU for this node than pods have",
	"mtu of the way":    "the sender learns a smaller MTU of the path",
	"mtu between nodes": "pods' TCP continues when the path between nodes gets a smaller MTU",
	"long packets":      "hosts keep a larger MTU for each other than pods have",
	"long answers":      "long answers from a machine without path MTU discovery, to a pod with an EgressIP",
	"whole":             "datagrams in one packet and in fragments arrive from the same port",
	"download":          "a stream through a load balancer continues when the path gets a smaller MTU",
}

// exceptions returns the table of trials that do not apply to every datapath and mode.
func exceptions() string {
	type key struct{ where, why, group string }
	var order []key
	count := map[key]int{}
	add := func(where, why, name string) {
		word, _, _ := strings.Cut(name, " ")
		for _, group := range []string{"mtu of the way", "mtu of pods", "mtu between nodes", "long packets",
			"long answers"} {
			if strings.HasPrefix(name, group) {
				word = group
			}
		}
		k := key{where, why, word}
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
	b.WriteString("| where | what does not work | why | trials |\n|---|---|---|---|\n")
	for _, k := range order {
		what := limits[k.group]
		if what == "" {
			panic("no limit describes trials of " + k.group)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d of `%s` |\n", k.where, what, k.why, count[k], k.group)
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
