package ovs

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/delta"
	"hairpin/pipeline"
)

// Print writes a State as text. The bridge, settings, ports and tunnel neighbours are similar to
// ovs-vsctl and ovs-appctl. The flows follow in ovs-ofctl's syntax, sorted by table, priority
// (highest first) and match, then the groups. The owner follows as a comment. Equal States give
// equal text.
func Print(s State) string {
	var b []byte
	if s.Bridge != "" {
		b = append(appendName(append(b, "bridge "...), s.Bridge), '\n')
	}
	for _, name := range delta.Keys(s.Bridges) {
		b = append(s.Bridges[name].append(b), '\n')
	}
	for _, k := range delta.Keys(s.Settings) {
		b = appendPair(append(b, "set Open_vSwitch . external_ids:"...), k, s.Settings[k])
		b = append(b, '\n')
	}
	for _, name := range delta.Keys(s.Ports) {
		b = append(s.Ports[name].append(b), '\n')
	}
	for _, bridge := range delta.Keys(s.Named) {
		b = appendName(append(b, "name-tables "...), cmp.Or(bridge, s.Bridge))
		b = append(b, map[bool]string{true: "\n", false: " partly\n"}[s.Named[bridge]]...)
	}
	tunnels := s.Bridge
	if s.TunnelBridge != "" {
		tunnels = s.TunnelBridge
		b = append(appendName(append(b, "tunnel-bridge "...), tunnels), '\n')
	}
	for _, a := range delta.Sorted(s.TunnelRoutes, netip.Addr.Compare) {
		b = append(a.AppendTo(append(b, "ovs/route/add "...)), '/')
		b = append(strconv.AppendInt(b, int64(a.BitLen()), 10), ' ')
		b = append(appendName(b, tunnels), ' ')
		b = append(s.TunnelRoutes[a].AppendTo(b), '\n')
	}
	for _, a := range delta.Sorted(s.TunnelNeighbors, netip.Addr.Compare) {
		b = append(appendName(append(b, "tnl/arp/set "...), tunnels), ' ')
		b = append(a.AppendTo(b), ' ')
		b = append(s.TunnelNeighbors[a].AppendTo(b), '\n')
	}
	for _, bridge := range s.NoFlows {
		b = append(appendName(append(b, "no-flows "...), bridge), '\n')
	}
	for _, bridge := range s.filled() {
		if bridge != "" {
			b = append(appendName(append(b, "bridge "...), bridge), '\n')
		}
		b = s.appendContent(b, bridge)
	}
	return string(b)
}

// filled returns the bridges that have flows, groups or unknown flows, by the name in keys.
func (s *State) filled() []string {
	names := map[string]bool{}
	for _, f := range s.Flows.All() {
		names[f.Bridge] = true
	}
	for k := range s.Groups.All() {
		names[k.Bridge] = true
	}
	for _, u := range s.Unknown {
		names[u.Bridge] = true
	}
	return delta.Keys(names)
}

// appendContent writes the flows and groups of a bridge.
func (s *State) appendContent(b []byte, bridge string) []byte {
	b = appendFlows(b, s.Flows, bridge)
	for _, k := range s.Groups.Sorted(func(x, y flow.GroupKey) int { return cmp.Compare(x.ID, y.ID) }) {
		if g := s.Groups.At(k); k.Bridge == bridge {
			b = append(flow.AppendOwner(g.Append(b), g.Owner), '\n')
		}
	}
	for _, u := range s.Unknown {
		if u.Bridge == bridge {
			b = append(append(append(b, "unknown "...), u.Flow...), '\n')
		}
	}
	return b
}

// appendFlows renders every flow of a bridge once and sorts by the rendered text, because each flow
// is compared about 16 times, and a comparison of fields costs more.
func appendFlows(b []byte, flows delta.Map[flow.ID, *flow.Flow], bridge string) []byte {
	type line struct {
		order      uint32 // by table, then by priority, highest first
		start, end int
		match      int // start of the match
	}
	lines := make([]line, 0, flows.Len())
	text := make([]byte, 0, 160*flows.Len())
	for _, f := range flows.All() {
		if f.Bridge != bridge {
			continue
		}
		l := line{order: uint32(f.Table)<<16 | uint32(^f.Priority), start: len(text)}
		text = f.Append(text)
		l.match = l.start + bytes.Index(text[l.start:], []byte("table="))
		text = flow.AppendOwner(text, f.Owner)
		l.end = len(text)
		lines = append(lines, l)
	}
	slices.SortFunc(lines, func(x, y line) int {
		if x.order != y.order {
			return cmp.Compare(x.order, y.order)
		}
		return bytes.Compare(text[x.match:x.end], text[y.match:y.end])
	})
	b = slices.Grow(b, len(text)+len(lines))
	for _, l := range lines {
		b = append(append(b, text[l.start:l.end]...), '\n')
	}
	return b
}

// String returns the port in a syntax similar to ovs-vsctl, with its owner.
func (p Port) String() string { return string(p.append(nil)) }

func (p Port) append(b []byte) []byte {
	b = appendName(append(b, "add-port "...), p.Bridge)
	b = appendName(append(b, ' '), p.Name)
	b = appendName(append(b, " -- set Interface "...), p.Name)
	if p.Type != "" {
		b = appendName(append(b, " type="...), p.Type)
	}
	if p.Peer != "" {
		b = appendName(append(b, " options:peer="...), p.Peer)
	}
	if p.Local.IsValid() {
		b = p.Local.AppendTo(append(b, " options:local_ip="...))
	}
	if p.MAC != (cluster.MAC{}) {
		b = append(p.MAC.AppendTo(append(b, ` mac="`...)), '"')
	}
	if p.MTU != 0 {
		b = fmt.Appendf(b, " mtu_request=%d", p.MTU)
	}
	for _, k := range delta.Keys(p.ExternalIDs) {
		b = appendPair(append(b, " external_ids:"...), k, p.ExternalIDs[k])
	}
	return flow.AppendOwner(b, p.Owner)
}

// String returns the bridge in a syntax similar to ovs-vsctl, with its owner.
func (x Bridge) String() string { return string(x.append(nil)) }

func (x Bridge) append(b []byte) []byte {
	b = appendName(append(b, "add-br "...), x.Name)
	b = appendName(append(b, " -- set Bridge "...), x.Name)
	b = append(b, map[bool]string{false: " fail_mode=secure", true: " fail_mode=standalone"}[x.Standalone]...)
	if x.Userspace {
		b = append(b, " datapath_type=netdev"...)
	}
	if x.Learned != 0 {
		b = fmt.Appendf(b, " flow_tables:%d:flow_limit=%d", pipeline.SvcSessionAffinity, x.Learned)
	}
	if x.Connections != 0 {
		b = fmt.Appendf(b, " ct_zones:%d:limit=%d", claims.ZoneServices, x.Connections)
	}
	return flow.AppendOwner(b, x.Owner)
}

// appendPair writes a key and its value, which is always quoted.
func appendPair(b []byte, key, value string) []byte {
	return strconv.AppendQuote(append(appendName(b, key), '='), value)
}

// appendName writes a name, quoted unless it is made of letters, digits, "_", "-" and ".".
func appendName(b []byte, name string) []byte {
	if name != "" && strings.IndexFunc(name, isNotPlain) < 0 {
		return append(b, name...)
	}
	return strconv.AppendQuote(b, name)
}

func isNotPlain(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_-.", r))
}
