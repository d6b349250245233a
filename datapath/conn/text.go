package conn

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
)

// Print writes one line for each VIP: "udp 10.96.0.10:53 10.244.1.3:53 by 172.18.0.3:30053 #
// Service/…", then one for each egress address: "egress 10.10.10.33 elsewhere # EgressIP/…", then
// one for each range: "udp to 10.96.0.0/16 as 10.244.1.2 # Node/…". No tool has a syntax for this.
func Print(s State) string {
	var b strings.Builder
	for _, vip := range slices.SortedFunc(maps.Keys(s.UDP), netip.AddrPort.Compare) {
		t := s.UDP[vip]
		b.WriteString("udp " + vip.String())
		for _, a := range t.Live {
			b.WriteString(" " + a.String())
		}
		for i, a := range t.Steps {
			if i == 0 {
				b.WriteString(" by")
			}
			b.WriteString(" " + a.String())
		}
		end(&b, t.Owner)
	}
	for _, a := range slices.SortedFunc(maps.Keys(s.Egress), netip.Addr.Compare) {
		e := s.Egress[a]
		b.WriteString("egress " + a.String())
		if e.Elsewhere {
			b.WriteString(" elsewhere")
		}
		end(&b, e.Owner)
	}
	for _, p := range slices.SortedFunc(maps.Keys(s.Ways), netip.Prefix.Compare) {
		b.WriteString("udp to " + p.String() + " as " + s.Ways[p].Source.String())
		end(&b, s.Ways[p].Owner)
	}
	return b.String()
}

func end(b *strings.Builder, o cluster.Owner) {
	if o != (cluster.Owner{}) {
		b.WriteString(" # " + o.String())
	}
	b.WriteByte('\n')
}
