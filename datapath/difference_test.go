package datapath

import (
	"slices"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
)

// Two bridges may have the same flow: each needs its own.
func TestDifferencesTellBridgesApart(t *testing.T) {
	on := func(bridges ...string) State {
		s := State{Bridge: ovs.State{Bridge: "br-ex"}}
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
		var got []string
		for _, d := range (Filter{}).Differences(c.want, c.found) {
			got = append(got, d.Line)
		}
		if !slices.Equal(got, c.lines) {
			t.Errorf("%s: %q, want %q", name, got, c.lines)
		}
	}
}

// TestDifferencesOfObject checks which lines a Filter selects. A changed flow has the owner of the
// wanted one, which a switch does not store.
func TestDifferencesOfObject(t *testing.T) {
	web, other := cluster.ParseOwner("Service/default/web"), cluster.ParseOwner("Service/default/other")
	state := func(table uint8, owner cluster.Owner, action flow.Action) State {
		s := State{Bridge: ovs.State{Bridge: "br-ex"}}
		k := flow.Key{Table: table}
		s.Bridge.Flows.Put(k.ID(), &flow.Flow{Key: k, Actions: []flow.Action{action}, Owner: owner})
		return s
	}
	const cookie = "cookie=0xdeff105,table="
	changed := []string{"- " + cookie + "1,priority=0 actions=drop # Service/default/web",
		"+ " + cookie + "1,priority=0 actions=NORMAL # Service/default/web"}
	for name, c := range map[string]struct {
		systems []string
		object  string
		found   State
		want    []string
	}{
		"changed":           {nil, web.String(), state(1, cluster.Owner{}, flow.Normal{}), changed},
		"of another":        {nil, other.String(), state(1, cluster.Owner{}, flow.Normal{}), nil},
		"of this system":    {[]string{"openvswitch"}, web.String(), state(1, cluster.Owner{}, flow.Normal{}), changed},
		"of another system": {[]string{"nft"}, web.String(), state(1, cluster.Owner{}, flow.Normal{}), nil},
		"extra":             {nil, web.String(), state(2, cluster.Owner{}, flow.Drop{}), changed[:1]},
		"same":              {nil, web.String(), state(1, cluster.Owner{}, flow.Drop{}), nil},
	} {
		f, err := ParseFilter(c.systems, c.object)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range f.Differences(state(1, web, flow.Drop{}), c.found) {
			if got = append(got, d.Line); d.System != "openvswitch" {
				t.Errorf("%s: system %s", name, d.System)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	for _, c := range []struct {
		systems []string
		object  string
	}{{[]string{"ovs"}, ""}, {nil, "web"}} {
		if _, err := ParseFilter(c.systems, c.object); err == nil {
			t.Errorf("%v %q is a filter", c.systems, c.object)
		}
	}
}
