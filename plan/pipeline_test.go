package plan_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/tools/txtar"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
	"hairpin/pipeline"
	"hairpin/plan"
	"hairpin/watch"
)

// nextTables returns the tables to which actions resubmit.
func nextTables(s *ovs.State, bridge string, actions []flow.Action) (list []uint8) {
	for _, a := range actions {
		switch a := a.(type) {
		case flow.Resubmit:
			list = append(list, a.Table)
		case flow.CT:
			if a.Table != 0 {
				list = append(list, a.Table)
			}
		case flow.ToGroup:
			g, _ := s.Groups.Get(flow.GroupKey{Bridge: bridge, ID: a.ID})
			for _, b := range g.Buckets {
				list = append(list, max(b.Next, b.CT.Table))
			}
		}
	}
	return list
}

// demo plans the nodes of examples/demo with the Service engine openflow.
func demo(t *testing.T) map[string]datapath.State {
	t.Helper()
	files, err := filepath.Glob("../examples/demo/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	var objects []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(append(objects, "---\n"...), text...)
	}
	snapshot := watch.ParseManifests(objects, cluster.DefaultConfig())
	for _, n := range snapshot.Nodes {
		n.Gateway.OpenFlow, n.Gateway.Userspace = true, true
	}
	states := map[string]datapath.State{}
	for _, n := range snapshot.Nodes {
		states[n.Name], _ = plan.Node(snapshot, n.Name)
	}
	return states
}

type hop struct {
	bridge   pipeline.Bridge
	from, to uint8
}

// TestPipeline checks the flows of all stories against the declared pipelines. Each flow is in a
// declared table, and resubmits only to its declared next tables, which come later. Some flow
// resubmits to each declared next table.
func TestPipeline(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	used := map[hop]bool{}
	worlds := []map[string]datapath.State{demo(t)}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		worlds = append(worlds, read(t, txtar.Parse(text)).world.States)
	}
	for _, w := range worlds {
		for _, state := range w {
			for _, f := range state.Bridge.Flows.All() {
				b := pipeline.Bridge(f.Bridge)
				if _, ok := pipeline.Lookup(b, f.Table); !ok {
					t.Fatalf("%s is in a table that is not declared", f)
				}
				for _, to := range nextTables(&state.Bridge, f.Bridge, f.Actions) {
					used[hop{b, f.Table, to}] = true
				}
			}
		}
	}
	declared := map[hop]bool{}
	for _, b := range []pipeline.Bridge{pipeline.Gateway, pipeline.Service, pipeline.Tunnel} {
		place := map[uint8]int{}
		tables := pipeline.Tables(b)
		for i, x := range tables {
			place[x.ID] = i
		}
		for i, x := range tables {
			for _, to := range x.Next {
				declared[hop{b, x.ID, to}] = true
				if place[to] <= i {
					t.Errorf("%s: %s leads back to table %d", b, x.Name, to)
				}
			}
			for _, to := range x.Again {
				declared[hop{b, x.ID, to}] = true
				if place[to] > i {
					t.Errorf("%s: table %d is not before %s", b, to, x.Name)
				}
			}
		}
	}
	order := func(a, b hop) int {
		return slices.Compare([]int{len(a.bridge), int(a.from), int(a.to)},
			[]int{len(b.bridge), int(b.from), int(b.to)})
	}
	for _, h := range slices.SortedFunc(maps.Keys(used), order) {
		if !declared[h] {
			t.Errorf("a flow leads from %s to table %d: not declared", name(h.bridge, h.from), h.to)
		}
	}
	for _, h := range slices.SortedFunc(maps.Keys(declared), order) {
		if !used[h] {
			t.Errorf("no flow leads from %s to table %d", name(h.bridge, h.from), h.to)
		}
	}
}

func name(b pipeline.Bridge, id uint8) string {
	t, _ := pipeline.Lookup(b, id)
	return fmt.Sprintf("%s table %d (%s)", b, id, t.Name)
}
