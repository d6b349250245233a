package scale_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/lab"
	"hairpin/lab/scale"
)

// TestScale grows a small cluster and checks that every part is measured, and that deleted nodes
// leave nothing behind. It asserts no time.
func TestScale(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a lab needs root")
	}
	hairpin, err := lab.BuildHairpin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "table.json")
	var out strings.Builder
	table, err := scale.Run(t.Context(), scale.Options{
		Name: "scale-test", Hairpin: hairpin, CRDs: "../../charts/hairpin/crds", Nodes: 20, Services: 20, Pods: 60,
		EgressIPs: 4,
		Slices:    10, Rounds: 1, Window: 2 * time.Second, Away: time.Second, JSON: file, Out: &out,
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for what, want := range map[string][2]float64{ // at least and at most, for each size
		"node-a: tunnels, 10 nodes": {9, 9}, // one to each other node, regardless of joins and leaves
		"node-a: tunnels, 20 nodes": {19, 19},
		// two agents, the controller, and after some time one of Kubernetes' own
		"API server: watches of egressips, 10 nodes": {3, 4},
		"API server: watches of egressips, 20 nodes": {3, 4},
	} {
		name, size, _ := strings.Cut(what, ", ")
		r, i := table.Row(name), slices.Index([]string{"10 nodes", "20 nodes"}, size)
		if r == nil || len(r.Values) != 2 || r.Values[i] < want[0] || r.Values[i] > want[1] {
			t.Errorf("%s: %+v, want %v", what, r, want)
		}
	}
	for _, r := range table.Rows {
		if len(r.Values) != 2 {
			t.Errorf("%s was measured %d times, not at both sizes", r.What, len(r.Values))
		}
	}
	var read scale.Table
	if text, err := os.ReadFile(file); err != nil || json.Unmarshal(text, &read) != nil ||
		len(read.Rows) != len(table.Rows) {
		t.Errorf("the JSON beside the table: %v, %d rows, want %d", err, len(read.Rows), len(table.Rows))
	}
}

// TestPush adds endpoints to one Service, and checks that connections to it reach them.
func TestPush(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a lab needs root")
	}
	hairpin, err := lab.BuildHairpin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	table, err := scale.Run(t.Context(), scale.Options{
		Name: "scale-push", Hairpin: hairpin, CRDs: "../../charts/hairpin/crds", Nodes: 4, Services: 2, Pods: 4,
		Rounds: 1, Window: time.Second,
		Push: "endpoints", Sizes: []int{10, 30}, Out: &out,
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	r := table.Row("endpoints that got one of 8 connections for each")
	if r == nil || len(r.Values) != 2 || slices.Min(r.Values) < 70 || slices.Max(r.Values) > 100 {
		t.Errorf("connections met %+v\n%s", r, &out)
	}
}
