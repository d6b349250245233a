package datapath

import (
	"slices"
	"testing"

	"hairpin/datapath/flow"
)

// Two bridges may have the same flow: each needs its own.
func TestDifferencesTellBridgesApart(t *testing.T) {
	on := func(bridges ...string) State {
		s := State{Bridge: flow.State{Bridge: "br-ex"}}
		for _, b := range bridges {
			k := flow.Key{Bridge: b}
			s.Bridge.Flows.Put(k.ID(), &flow.Flow{Key: k, Actions: []flow.Action{flow.Drop{}}})
		}
		return s
	}
	for name, c := range map[string]struct {
		want, found State
		lines       []string
	}{
		"the same": {on("", "br-svc"), on("", "br-svc"), nil},
		"one less": {on("", "br-svc", "br-x"), on("", "br-x"),
			[]string{"- bridge br-svc", "- cookie=0xdeff105,table=0,priority=0 actions=drop"}},
		"one more": {on("br-svc"), on("br-svc", ""), []string{"+ cookie=0xdeff105,table=0,priority=0 actions=drop"}},
		"on another": {on("", "br-svc"), on("", "br-x"),
			[]string{"- bridge br-svc", "- cookie=0xdeff105,table=0,priority=0 actions=drop", "+ bridge br-x",
				"+ cookie=0xdeff105,table=0,priority=0 actions=drop"}},
		"none at all": {on(""), on(), []string{"- cookie=0xdeff105,table=0,priority=0 actions=drop"}},
	} {
		if got := Differences(c.want, c.found); !slices.Equal(got, c.lines) {
			t.Errorf("%s: %q, want %q", name, got, c.lines)
		}
	}
}
