package flow

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
	"hairpin/delta"
	"hairpin/pipeline"
)

// defaultPriority is the priority of a flow without one in its text (ovs-ofctl(8)).
const defaultPriority = 32768

// String returns the flow in ovs-ofctl's syntax, without the owner.
func (f *Flow) String() string { return string(f.append(nil)) }

// String returns table, priority and match in ovs-ofctl's syntax.
func (k Key) String() string { return string(k.append(nil)) }

// String returns the match in ovs-ofctl's syntax, "" if it matches everything.
func (m Match) String() string { return string(m.append(nil, "")) }

// Cookie returns the flow's cookie: the feature in the upper half, claims.Cookie in the lower.
func (f *Flow) Cookie() uint64 { return uint64(f.Feature)<<32 | claims.Cookie }

// unknown returns the flow's UnknownActions, if it has them.
func (f *Flow) unknown() (u UnknownActions, is bool) {
	if len(f.Actions) == 1 {
		u, is = f.Actions[0].(UnknownActions)
	}
	return u, is
}

func (f *Flow) append(b []byte) []byte {
	b = append(b, "cookie=0x"...)
	b = strconv.AppendUint(b, f.Cookie(), 16)
	b = append(b, ',')
	b = f.Key.append(b)
	if u, ok := f.unknown(); ok && u.Attributes != "" {
		b = append(append(b, ','), u.Attributes...)
	}
	b = append(b, " actions="...)
	return appendActions(b, f.Actions)
}

func (k *Key) append(b []byte) []byte {
	b = append(b, "table="...)
	b = strconv.AppendUint(b, uint64(k.Table), 10)
	b = append(b, ",priority="...)
	b = strconv.AppendUint(b, uint64(k.Priority), 10)
	return k.Match.append(b, ",")
}

// String returns ct_state's value: "+est-inv+trk".
func (c CTState) String() string { return string(c.append(nil)) }

func (c CTState) append(b []byte) []byte {
	for i, name := range ctBits {
		switch bit := CTBits(1) << i; {
		case c.Set&bit != 0:
			b = append(append(b, '+'), name...)
		case c.Clear&bit != 0:
			b = append(append(b, '-'), name...)
		}
	}
	return b
}

// appendPort writes a port as ovs-ofctl does: quoted unless it is a plain word or a number.
func appendPort(b []byte, port string) []byte {
	switch {
	case isNumber(port) || isWord(port):
		return append(b, port...)
	case hasEscapes(port):
		return strconv.AppendQuote(b, port)
	}
	return append(append(append(b, '"'), port...), '"')
}

// hasEscapes reports whether a quoted text may need escapes, which is cheaper than quoting it.
func hasEscapes(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return true
		}
	}
	return false
}

func isNumber(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

func isWord(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

func appendMAC(b []byte, m cluster.MAC) []byte {
	const hex = "0123456789abcdef"
	for i, x := range m {
		if i > 0 {
			b = append(b, ':')
		}
		b = append(b, hex[x>>4], hex[x&15])
	}
	return b
}

// Print writes a State as text that Parse reads back. The bridge, settings, ports and tunnel
// neighbours are similar to ovs-vsctl and ovs-appctl. The flows follow in ovs-ofctl's syntax,
// sorted by table, priority (highest first) and match, then the groups. The owner follows as a
// comment. Equal States give equal text.
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
	through := s.Bridge
	if s.TunnelBridge != "" {
		through = s.TunnelBridge
		b = append(appendName(append(b, "tunnel-bridge "...), through), '\n')
	}
	for _, a := range delta.Sorted(s.TunnelRoutes, netip.Addr.Compare) {
		b = append(a.AppendTo(append(b, "ovs/route/add "...)), '/')
		b = append(strconv.AppendInt(b, int64(a.BitLen()), 10), ' ')
		b = append(appendName(b, through), ' ')
		b = append(s.TunnelRoutes[a].AppendTo(b), '\n')
	}
	for _, a := range delta.Sorted(s.TunnelNeighbors, netip.Addr.Compare) {
		b = append(appendName(append(b, "tnl/arp/set "...), through), ' ')
		b = append(a.AppendTo(b), ' ')
		b = append(appendMAC(b, s.TunnelNeighbors[a]), '\n')
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
	for _, k := range s.Groups.Sorted(func(x, y GroupKey) int { return cmp.Compare(x.ID, y.ID) }) {
		if g := s.Groups.At(k); k.Bridge == bridge {
			b = append(appendOwner(g.append(b), g.Owner), '\n')
		}
	}
	for _, u := range s.Unknown {
		if u.Bridge == bridge {
			b = append(append(append(b, "unknown "...), u.Flow...), '\n')
		}
	}
	return b
}

// appendFlows renders every flow of a bridge once and sorts by the rendered text. To compare twelve
// fields 16 times per flow would cost more.
func appendFlows(b []byte, flows delta.Map[ID, *Flow], bridge string) []byte {
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
		text = f.append(text)
		l.match = l.start + bytes.Index(text[l.start:], []byte("table="))
		text = appendOwner(text, f.Owner)
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
		b = append(appendMAC(append(b, ` mac="`...), p.MAC), '"')
	}
	if p.MTU != 0 {
		b = fmt.Appendf(b, " mtu_request=%d", p.MTU)
	}
	for _, k := range delta.Keys(p.ExternalIDs) {
		b = appendPair(append(b, " external_ids:"...), k, p.ExternalIDs[k])
	}
	return appendOwner(b, p.Owner)
}

// String returns the bridge near to the words of ovs-vsctl, with its owner.
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
	return appendOwner(b, x.Owner)
}

func appendOwner(b []byte, o cluster.Owner) []byte {
	if o == (cluster.Owner{}) {
		return b
	}
	return append(append(b, " # "...), o.String()...)
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
