package explain_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/plan"
	"hairpin/walk"
	"hairpin/walk/explain"
	"hairpin/walk/explain/question"
	"hairpin/watch"
)

// Limits for a random cluster: enough to include every kind of object, few enough for many runs.
const (
	fuzzNodes     = 3
	fuzzFrontends = 4
	fuzzBytes     = 16 << 10
)

// FuzzObjects checks for any objects that every node can be planned and that the plan can be read
// from its JSON. Each entry of the plan must be one line, and packets to Services are followed to
// their end: walk knows everything that plan writes.
func FuzzObjects(f *testing.F) {
	files, err := filepath.Glob("../../examples/demo/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	read := map[string]string{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		read[filepath.Base(name)] = string(text)
	}
	nodes := read["nodes.yaml"]
	for _, text := range strings.Split(read["services.yaml"], "\n---\n") { // one by one: small seeds make many runs
		f.Add(nodes, text, slicesOf(read["slices.yaml"], text))
	}
	f.Add(nodes, read["policies.yaml"], read["pods.yaml"])
	f.Add("{apiVersion: v1, kind: Node, metadata: {name: n}}",
		"{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}", "")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		if len(a)+len(b)+len(c) > fuzzBytes {
			return
		}
		s := watch.ParseManifests([]byte(a+"\n---\n"+b+"\n---\n"+c), cluster.DefaultConfig())
		world := walk.World{Snapshot: s, States: map[string]datapath.State{}}
		for _, n := range s.Nodes[:min(len(s.Nodes), fuzzNodes)] {
			state, _ := plan.Node(s, n.Name)
			world.States[n.Name] = state
			printed := datapath.Print(state)
			var again datapath.State
			text, err := datapath.Encode(state)
			if err == nil {
				err = datapath.Decode(text, &again)
			}
			if twice := datapath.Print(again); err != nil || twice != printed {
				t.Fatalf("%s: %v\nprinted\n%sread back\n%s", n.Name, err, printed, twice)
			}
			if i := strings.IndexFunc(printed,
				func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0x7f }); i >= 0 {
				t.Fatalf("%s: %q is in the plan", n.Name, printed[i])
			}
		}
		w := walk.New(world)
		from := []string{"outside"}
		for _, n := range s.Nodes[:min(len(s.Nodes), fuzzNodes)] {
			from = append(from, "host/"+n.Name)
		}
		for _, p := range s.Pods[:min(len(s.Pods), fuzzNodes)] {
			from = append(from, "pod/"+p.Owner.Namespace+"/"+p.Owner.Name)
		}
		for _, x := range s.Frontends[:min(len(s.Frontends), fuzzFrontends)] {
			for _, who := range from {
				q := question.Question{From: who, To: "svc/" + x.Owner.Namespace + "/" + x.Owner.Name,
					Protocol: x.Protocol, Family: x.Family, NodePort: x.NodePort != 0}
				e, err := explain.Ask(w, s, q)
				if err == nil && e.Failure != nil &&
					!slices.ContainsFunc(s.Nodes,
						func(n *cluster.Node) bool { return world.States[n.Name].NB == nil }) {
					t.Fatalf("%s to %s: %v", q.From, q.To, e.Failure)
				}
			}
		}
	})
}

// slicesOf returns the documents that name the Service of a document.
func slicesOf(slices, service string) string {
	var list []string
	for line := range strings.Lines(service) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "name: ")
		for _, text := range strings.Split(slices, "\n---\n") {
			if ok && strings.Contains(text, "service-name: "+strings.TrimSpace(name)) {
				list = append(list, text)
			}
		}
	}
	return strings.Join(list, "\n---\n")
}

// FuzzSnapshot checks that `hairpin explain` terminates for any Snapshot of an agent, even a
// malicious one.
func FuzzSnapshot(f *testing.F) {
	for _, text := range []string{
		"{apiVersion: v1, kind: Node, metadata: {name: n}}",
		`{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}`,
	} {
		seed, err := json.Marshal(watch.ParseManifests([]byte(text), cluster.DefaultConfig()))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	demo, err := watch.ReadFiles("../../examples/demo", cluster.DefaultConfig())
	if err != nil {
		f.Fatal(err)
	}
	demo.Nodes, demo.Pods, demo.Frontends = demo.Nodes[:2], demo.Pods[:1], demo.Frontends[:2]
	seed, err := json.Marshal(demo)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := cluster.ReadSnapshot(text)
		if err != nil || len(text) > 16<<10 {
			return
		}
		states := map[string]datapath.State{}
		for _, n := range s.Nodes[:min(len(s.Nodes), 2)] {
			states[n.Name], _ = plan.Node(s, n.Name)
			_ = datapath.Print(states[n.Name])
		}
		w := walk.New(walk.World{Snapshot: s, States: states})
		for _, n := range s.Nodes[:min(len(s.Nodes), 2)] {
			for _, x := range s.Frontends[:min(len(s.Frontends), 3)] {
				q := question.Question{From: "host/" + n.Name, To: "svc/" + x.Owner.Namespace + "/" + x.Owner.Name}
				if e, err := explain.Ask(w, s, q); err == nil {
					_ = e.Text(explain.Form{All: true, Costs: true})
				}
			}
		}
	})
}

// FuzzState checks that `hairpin explain` terminates for any found State of an agent, even a
// malicious one.
func FuzzState(f *testing.F) {
	demo, err := watch.ReadFiles("../../examples/demo", cluster.DefaultConfig())
	if err != nil {
		f.Fatal(err)
	}
	small := *demo
	small.Nodes, small.Pods, small.Frontends = demo.Nodes[:2], demo.Pods[:1], demo.Frontends[:2]
	wanted, _ := plan.Node(&small, small.Nodes[0].Name)
	seed, err := datapath.Encode(wanted)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{"NFT":{"inet":{}},"NB":[{"Router":{"Name":"ovn_cluster_router"}},{"Policy":{}},{"NAT":{}},{"Route":{}}],"Host":{"Routes":[{}],"Rules":[{"Key":{},"Value":{}}]}}`))
	f.Add([]byte(`{"NFT":{"inet":{"Chains":{"c":{"Hook":"prerouting","Rules":[{"Matches":[{"AddrIn":{}},{"InSet":{"Set":"s"}}],"Do":{"DNATMap":{"Map":"m"}}}]}},"Sets":{"s":{"Key":["x"]}},"Maps":{"m":{}}}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var found datapath.State
		if len(text) > len(seed) || datapath.Decode(text, &found) != nil {
			return
		}
		_ = datapath.Print(found)
		states := map[string]datapath.State{}
		for _, n := range small.Nodes {
			states[n.Name] = found
		}
		w := walk.New(walk.World{Snapshot: &small, States: states})
		for _, n := range small.Nodes {
			for _, x := range small.Frontends {
				q := question.Question{From: "host/" + n.Name, To: "svc/" + x.Owner.Namespace + "/" + x.Owner.Name}
				if e, err := explain.Ask(w, &small, q); err == nil {
					_ = e.Text(explain.Form{All: true, Costs: true})
				}
			}
		}
	})
}
