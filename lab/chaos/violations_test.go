package chaos

import (
	"net/netip"
	"testing"
	"time"
)

const s = time.Second

// window returns a fault that lasted from the 100th to the 110th second.
func window(kind, node, peer string) Window {
	return Window{Fault: Fault{Kind: kind, Node: node, Peer: peer}, Began: 100 * s, Ended: 110 * s}
}

// TestExcuses checks when a failed connection is a violation.
func TestExcuses(t *testing.T) {
	fixed := Path{Nodes: []string{"node-a", "node-b"}}
	roams := Path{Nodes: []string{"node-a"}, Changes: []span{{100 * s, 102 * s}}}
	floating := Path{Nodes: []string{"node-a"}, Floating: []string{"node-b", "node-c"}}
	leaving := Path{Nodes: []string{"node-b"}, API: "node-a"}
	flushed := Window{Fault: Fault{Kind: "nft ruleset flushed", Node: "node-b"}, Began: 100 * s, Ended: 100 * s}
	grace := kinds["ovs-vswitchd killed"].grace
	nodePort := Path{Nodes: []string{"node-b", "node-a"}, Own: "node-b"}
	byNode := Path{Nodes: []string{"node-b", "node-a"}}
	renumbered := []Window{{Fault: Fault{Kind: "another InternalIP", Node: "node-b"}, Began: 100 * s, Ended: 150 * s}}
	running := window("ovs-vswitchd stopped", "node-a", "")
	running.Ended = 0
	for name, c := range map[string]struct {
		path     Path
		windows  []Window
		at, took time.Duration
		excused  bool
	}{
		"no fault":      {fixed, nil, 105 * s, s, false},
		"during":        {fixed, []Window{window("ovs-vswitchd killed", "node-a", "")}, 105 * s, s, true},
		"before":        {fixed, []Window{window("ovs-vswitchd killed", "node-a", "")}, 98 * s, s, false},
		"begins before": {fixed, []Window{window("ovs-vswitchd killed", "node-a", "")}, 98 * s, 3 * s, true},
		"within the grace": {fixed, []Window{window("ovs-vswitchd killed", "node-a", "")}, 110*s + grace - s, s,
			true},
		"after the grace":     {fixed, []Window{window("ovs-vswitchd killed", "node-a", "")}, 111*s + grace, s, false},
		"another node":        {fixed, []Window{window("ovs-vswitchd killed", "node-c", "")}, 105 * s, s, false},
		"has not ended":       {fixed, []Window{running}, 1000 * s, s, true},
		"agent":               {fixed, []Window{window("agent killed", "node-a", "")}, 105 * s, s, false},
		"control plane":       {fixed, []Window{window("control plane killed", "", "")}, 105 * s, s, false},
		"partition":           {fixed, []Window{window("partition", "node-b", "node-a")}, 105 * s, s, true},
		"other partition":     {fixed, []Window{window("partition", "node-b", "node-c")}, 105 * s, s, false},
		"partition, floating": {floating, []Window{window("partition", "node-c", "node-a")}, 105 * s, s, true},
		"takeover":            {floating, []Window{window("node paused", "node-b", "")}, 101 * s, s, true},
		"after the takeover":  {floating, []Window{window("node paused", "node-b", "")}, 104 * s, s, false},
		"back":                {floating, []Window{window("node paused", "node-b", "")}, 109 * s, 2 * s, true},
		"client's node":       {floating, []Window{window("node paused", "node-a", "")}, 104 * s, s, true},
		"flushed, floating":   {floating, []Window{window("nft ruleset flushed", "node-b", "")}, 105 * s, s, true},
		"nothing repairs": {fixed, []Window{window("nft ruleset flushed", "node-a", ""),
			{Fault: Fault{Kind: "agent stopped", Node: "node-a"}, Began: 111 * s, Ended: 150 * s}}, 145 * s, s, true},
		"another agent": {fixed, []Window{window("nft ruleset flushed", "node-a", ""),
			{Fault: Fault{Kind: "agent stopped", Node: "node-c"}, Began: 111 * s, Ended: 150 * s}}, 145 * s, s, false},
		"agent stopped later": {fixed, []Window{window("nft ruleset flushed", "node-a", ""),
			{Fault: Fault{Kind: "agent stopped", Node: "node-a"}, Began: 130 * s, Ended: 150 * s}}, 145 * s, s, false},
		"starts without API": {leaving, []Window{flushed, window("partition", "node-a", "node-b"),
			{Fault: Fault{Kind: "agents rolled out"}, Began: 95 * s, Ended: 101 * s}}, 109 * s, s, true},
		"started before": {leaving, []Window{flushed, window("partition", "node-a", "node-b"),
			{Fault: Fault{Kind: "agents rolled out"}, Began: 95 * s, Ended: 99 * s}}, 109 * s, s, false},
		"renumbered":                 {byNode, renumbered, 105 * s, s, true},
		"renumbered, later":          {byNode, renumbered, 130 * s, s, false},
		"renumbered, back":           {byNode, renumbered, 151 * s, s, true},
		"renumbered, to the address": {nodePort, renumbered, 130 * s, s, true},
		"another source":             {roams, nil, 101 * s, s, true},
		"not yet":                    {roams, nil, 98 * s, s, false},
		"applied":                    {roams, nil, 103 * s, s, false},
		"applied late":               {roams, []Window{window("agent stopped", "node-a", "")}, 105 * s, s, true},
		"new object": {Path{Nodes: []string{"node-a"}, Fresh: true}, []Window{window("agent killed", "node-a", "")},
			105 * s, s, true},
		"new object, no API": {Path{Nodes: []string{"node-b"}, Fresh: true, API: "node-a"},
			[]Window{window("partition", "node-b", "node-a")}, 105 * s, s, true},
		"new object, other node without API": {Path{Nodes: []string{"node-b"}, Fresh: true, API: "node-a"},
			[]Window{window("partition", "node-a", "node-c")}, 105 * s, s, false},
	} {
		results := []Result{{At: c.at, Took: c.took, Error: "timeout"}}
		if found := Violations([]Path{c.path}, c.windows, nil, results); (len(found) == 0) != c.excused {
			t.Errorf("%s: violations %v", name, found)
		}
	}
}

// TestJudge checks the invariants that nothing excuses, and that results are counted together.
func TestJudge(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	paths := []Path{
		{Name: "open", Nodes: []string{"node-a"}, Server: "web", Sources: []netip.Addr{a}},
		{Name: "denied", Nodes: []string{"node-a"}, Denied: true},
	}
	excuse := []Window{window("node paused", "node-a", "")}
	good := Result{Server: "web", Saw: a}
	for _, c := range []struct {
		result Result
		want   string
	}{
		{good, ""},
		{Result{Server: "db", Saw: a}, wrongServer},
		{Result{Server: "web", Saw: b}, wrongSource},
		{Result{Error: "timeout"}, ""},
		{Result{Path: 1, Error: "timeout"}, ""},
		{Result{Path: 1, Server: "web"}, passed},
	} {
		c.result.At = 105 * s
		got := ""
		for _, v := range Violations(paths, excuse, nil, []Result{c.result}) {
			got += v.What
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c.result, got, c.want)
		}
	}
	var results []Result
	for _, at := range []time.Duration{20, 5, 8, 1} {
		results = append(results, Result{At: at * s, Took: s, Error: "timeout"})
	}
	found := Violations(paths, nil, nil, results)
	if found := Violations(paths, nil, []span{{0, 10 * s}}, results); len(found) != 1 || found[0].From != 20*s {
		t.Errorf("with a stall of the machine: %+v", found)
	}
	if len(found) != 2 || found[0].Count != 3 || found[0].From != s || found[0].To != 9*s || found[1].Count != 1 {
		t.Errorf("%+v", found)
	}
}

// TestNotice checks the figures of a fault.
func TestNotice(t *testing.T) {
	paths := []Path{{Nodes: []string{"node-a"}}, {Nodes: []string{"node-b"}}, {Nodes: []string{"node-a"}, Denied: true}}
	var results []Result
	for at := range time.Duration(120) {
		r := Result{At: at * s, Took: s / 10}
		if at >= 101 && at < 108 {
			r.Error = "timeout"
		}
		for path := range paths {
			r.Path = path
			results = append(results, r)
		}
	}
	w := window("ovs-vswitchd stopped", "node-a", "")
	if lost, longest := impact(&w, paths, results); lost != 7 || longest != 8*s {
		t.Errorf("%d lost, %s without a success; want 7 and 8s", lost, longest)
	}
}

// TestLeaks checks which resources may grow.
func TestLeaks(t *testing.T) {
	const ports, goroutines, memory = "a: ports", "a: goroutines of the agent", "a: MB of memory of the agent"
	const northbound, southbound = "a: rows of OVN's northbound database", "a: rows of OVN's southbound database"
	const connections = "a: connections in the kernel"
	before := map[string]int{ports: 5, northbound: 100, goroutines: 100, southbound: 100, memory: 40, connections: 40}
	for name, c := range map[string]struct {
		exact, tenth, half, broken int // how many more of the resources, by how much these may grow
		want                       int
	}{
		"same": {}, "fewer": {-1, -10, -10, -10, 0}, "a little": {0, 10, 20, 500, 0}, "one more": {exact: 1, want: 1},
		"many more": {1, 11, 21, 501, 6},
	} {
		after := map[string]int{ports: 5 + c.exact, northbound: 100 + c.tenth, goroutines: 100 + c.tenth,
			southbound: 100 + c.tenth, memory: 40 + c.half, connections: 40 + c.broken}
		if got := leaks(before, after); len(got) != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestJudgeShared checks when an address on two nodes is a violation.
func TestJudgeShared(t *testing.T) {
	nodes := []string{"node-a", "node-b"}
	for name, c := range map[string]struct {
		windows  []Window
		from, to time.Duration
		want     int
	}{
		"a move":               {nil, 100 * s, 102 * s, 0},
		"too long":             {nil, 100 * s, 103 * s, 1},
		"partition":            {[]Window{window("partition", "node-b", "node-c")}, 101 * s, 111 * s, 0},
		"after it":             {[]Window{window("partition", "node-b", "node-a")}, 101 * s, 114 * s, 1},
		"of others":            {[]Window{window("agent stopped", "node-c", "")}, 101 * s, 109 * s, 1},
		"agent":                {[]Window{window("agent stopped", "node-a", "")}, 101 * s, 112 * s, 0},
		"ovs-vswitchd stopped": {[]Window{window("ovs-vswitchd stopped", "node-a", "")}, 110 * s, 115 * s, 1},
	} {
		found := SharedViolations([]Shared{{Nodes: nodes, From: c.from, To: c.to}}, c.windows)
		if len(found) != c.want {
			t.Errorf("%s: %+v", name, found)
		}
	}
}
