package conn

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
)

// Print writes one line for each virtual address: "udp 10.96.0.10:53 10.244.1.3:53 by 172.18.0.3:30053 # Service/…". No tool
// has words for it.
func Print(s State) string {
	var b strings.Builder
	for _, vip := range slices.SortedFunc(maps.Keys(s), netip.AddrPort.Compare) {
		t := s[vip]
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
		if t.Owner != (cluster.Owner{}) {
			b.WriteString(" # " + t.Owner.String())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Parse reads what Print wrote.
func Parse(text string) (State, error) {
	var s State
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		rule, owner, _ := strings.Cut(line, " # ")
		words := strings.Fields(rule)
		if len(words) < 2 || words[0] != "udp" {
			return nil, fmt.Errorf("%q is not \"udp\", an address and endpoints", line)
		}
		t := Targets{Owner: cluster.ParseOwner(owner)}
		vip, err := netip.ParseAddrPort(words[1])
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		list := &t.Live
		for _, w := range words[2:] {
			if w == "by" && list == &t.Live {
				list = &t.Steps
				continue
			}
			a, err := netip.ParseAddrPort(w)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", line, err)
			}
			*list = append(*list, a)
		}
		if _, twice := s[vip]; twice {
			return nil, fmt.Errorf("%q: a second line for %s", line, vip)
		}
		if s == nil {
			s = State{}
		}
		s[vip] = t
	}
	return s, nil
}
