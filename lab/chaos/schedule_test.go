package chaos

import (
	"reflect"
	"slices"
	"testing"
	"time"
)

var threeNodes = []string{"node-a", "node-b", "node-c"}

// TestPlan checks properties of the schedules of many seeds.
func TestPlan(t *testing.T) {
	const length = 10 * time.Minute
	drawn := map[string]int{}
	overlapping, all := 0, 0
	for seed := range uint64(200) {
		s := Plan(seed, length, threeNodes, kindNames)
		if again := Plan(seed, length, threeNodes, kindNames); !reflect.DeepEqual(s, again) {
			t.Fatalf("seed %d: two schedules", seed)
		}
		if seed > 0 && reflect.DeepEqual(s.Faults, Plan(seed-1, length, threeNodes, kindNames).Faults) {
			t.Errorf("seeds %d and %d: one schedule", seed-1, seed)
		}
		if len(s.Faults) < 50 {
			t.Errorf("seed %d: %d faults in %s", seed, len(s.Faults), length)
		}
		for i, f := range s.Faults {
			drawn[f.Kind]++
			all++
			if f.Start < startDelay || f.End < f.Start || f.End > length {
				t.Errorf("seed %d: %s", seed, f)
			}
			if i > 0 && f.Start < s.Faults[i-1].Start {
				t.Errorf("seed %d: %s comes too late", seed, f)
			}
			if k := kinds[f.Kind]; (k.where == onControlPlane) != (f.Node == "") ||
				(k.where == onPair) != (f.Peer != "") ||
				k.where == onWorker && f.Node == threeNodes[0] || f.Node == f.Peer && f.Node != "" {
				t.Errorf("seed %d: %s: wrong place", seed, f)
			}
			if slices.ContainsFunc(s.Faults[:i], func(g Fault) bool { return near(f, g, 0) }) {
				overlapping++
			}
			checkPair(t, seed, f, s.Faults[:i])
		}
	}
	for _, name := range kindNames {
		if drawn[name] == 0 {
			t.Errorf("no seed has %q", name)
		}
	}
	if overlapping*4 < all {
		t.Errorf("%d of %d faults overlap with another", overlapping, all)
	}
}

// checkPair checks a fault beside earlier ones: at most one node is dead, no node is without the
// API for long, and nothing fails that has failed already.
func checkPair(t *testing.T, seed uint64, f Fault, before []Fault) {
	t.Helper()
	k := kinds[f.Kind]
	for _, g := range before {
		o := kinds[g.Kind]
		if near(f, g, 0) && k.dead && o.dead {
			t.Errorf("seed %d: two dead nodes: %s; %s", seed, f, g)
		}
		if near(f, g, 0) && f.Node == g.Node && (k.part == o.part || o.part == wholeNode || k.part == wholeNode) {
			t.Errorf("seed %d: fails twice: %s; %s", seed, f, g)
		}
		for _, n := range f.nodesWithoutAPI(threeNodes) {
			if near(f, g, minAPIGap) && slices.Contains(g.nodesWithoutAPI(threeNodes), n) {
				t.Errorf("seed %d: %s is without the API for too long: %s; %s", seed, n, f, g)
			}
		}
	}
}

// TestSilences checks which kubelets a fault separates from the API server.
func TestSilences(t *testing.T) {
	for _, c := range []struct {
		fault Fault
		want  []string
	}{
		{Fault{Kind: "control plane killed"}, threeNodes},
		{Fault{Kind: "uplink down", Node: "node-a"}, threeNodes},
		{Fault{Kind: "uplink down", Node: "node-b"}, []string{"node-b"}},
		{Fault{Kind: "partition", Node: "node-a", Peer: "node-b"}, []string{"node-b"}},
		{Fault{Kind: "partition", Node: "node-c", Peer: "node-a"}, []string{"node-c"}},
		{Fault{Kind: "partition", Node: "node-c", Peer: "node-b"}, nil},
		{Fault{Kind: "kubelet stopped", Node: "node-a"}, []string{"node-a"}},
		{Fault{Kind: "agent killed", Node: "node-b"}, nil},
	} {
		if got := c.fault.nodesWithoutAPI(threeNodes); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.fault, got, c.want)
		}
	}
}

// TestSave checks that a file repeats a schedule.
func TestSave(t *testing.T) {
	s := Plan(7, time.Minute, threeNodes, kindNames)
	file := t.TempDir() + "/schedule.json"
	if err := s.Save(file); err != nil {
		t.Fatal(err)
	}
	if loaded, err := Load(file); err != nil || !reflect.DeepEqual(&s, loaded) {
		t.Errorf("%v: %+v, want %+v", err, loaded, s)
	}
	s.Faults[0].Kind = "earthquake"
	if err := s.Save(file); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file); err == nil {
		t.Error("a schedule with an unknown kind of fault was loaded")
	}
}

// TestPart checks that a part of a schedule begins and ends with its faults.
func TestPart(t *testing.T) {
	s := Plan(3, 5*time.Minute, threeNodes, kindNames)
	last := s.Faults[len(s.Faults)-2:]
	p := part(&s, last)
	if p.Faults[0].Start != startDelay || p.Faults[1].Start-p.Faults[0].Start != last[1].Start-last[0].Start ||
		p.For != max(p.Faults[0].End, p.Faults[1].End) {
		t.Errorf("%+v of %+v", p, last)
	}
}
