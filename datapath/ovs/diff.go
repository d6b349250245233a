package ovs

import (
	"maps"
	"net/netip"
	"strconv"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/statemap"
	"hairpin/delta"
)

// Delta is the difference between the wanted and the found content of Open vSwitch.
type Delta struct {
	Bridge          string
	TunnelBridge    string
	Bridges         delta.Delta[string, Bridge]
	Settings        delta.Delta[string, string]
	Ports           delta.Delta[string, Port]
	Named           delta.Delta[string, bool]
	TunnelNeighbors delta.Delta[netip.Addr, cluster.MAC]
	TunnelRoutes    delta.Delta[netip.Addr, netip.Addr]
	Flows           delta.Delta[flow.ID, *flow.Flow]
	Groups          delta.Delta[flow.GroupKey, *flow.Group]
	Unknown         []Unknown // flows to delete, as in State.Unknown
	NoFlows         []string  // bridges whose own program must install their flows again
}

// Diff compares two States. It ignores a MAC or MTU that a wanted Port does not set, and a limit of
// another program. It never deletes tunnel neighbours: they are a cache that the switch also fills,
// and they expire.
func Diff(want, have State) Delta {
	d := statemap.Diff(Maps, &want, &have)
	d.Bridge, d.TunnelBridge, d.Unknown, d.NoFlows = want.Bridge, want.TunnelBridge, have.Unknown, have.NoFlows
	d.TunnelNeighbors.Delete = nil
	return d
}

func sameBridge(want, have Bridge) bool {
	if have.Learned == ForeignLimit {
		have.Learned = want.Learned
	}
	if have.Connections == ForeignLimit {
		have.Connections = want.Connections
	}
	return want == have
}

func samePort(want, have Port) bool {
	switch {
	case want.Bridge != have.Bridge || want.Type != have.Type || want.Peer != have.Peer || want.Local != have.Local ||
		want.Owner != have.Owner:
		return false
	case want.MAC != (cluster.MAC{}) && want.MAC != have.MAC:
		return false
	case want.MTU != 0 && want.MTU != have.MTU:
		return false
	}
	return maps.Equal(want.ExternalIDs, have.ExternalIDs)
}

// Grow returns the part that adds and changes.
func (d Delta) Grow() Delta {
	g := statemap.Grow(Maps, &d)
	g.Bridge, g.TunnelBridge, g.NoFlows = d.Bridge, d.TunnelBridge, d.NoFlows
	return g
}

// Shrink returns the part that removes.
func (d Delta) Shrink() Delta {
	s := statemap.Shrink(Maps, &d)
	s.Bridge, s.TunnelBridge, s.Unknown = d.Bridge, d.TunnelBridge, d.Unknown
	return s
}

// Count returns the number of differences.
func (d Delta) Count() int { return statemap.Count(Maps, &d) + len(d.Unknown) + len(d.NoFlows) }

// Drift returns the number of differences between an earlier State and what was read, without those
// that the removal of a port causes. The flows that match such a port are still there, but were
// read with its number in place of its name: they are in Flows.Delete with the number, in Flows.Add
// with the name. Flows that output to such a port are in Flows.Change.
func (d Delta) Drift() int {
	drift, numbered := d.Count(), 0
	for id := range d.Flows.Delete {
		if _, err := strconv.ParseUint(id.Value().Match.InPort, 10, 16); err == nil {
			numbered++
		}
	}
	if numbered == 0 {
		return drift
	}
	drift -= 2 * numbered        // each is in Delete and in Add
	removed := map[string]bool{} // ports
	for _, f := range d.Flows.Add {
		if f.Match.InPort != "" {
			removed[f.Match.InPort] = true
		}
	}
	for _, f := range d.Flows.Change {
		if f.Uses(removed) {
			drift--
		}
	}
	return max(drift, 0)
}

// Empty reports whether there is nothing to do.
func (d Delta) Empty() bool { return d.Count() == 0 }
