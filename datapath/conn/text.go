package conn

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
)

// Print writes one line for each virtual address: "udp 10.96.0.10:53 10.244.1.3:53 by 172.18.0.3:30053 # Service/…", then one for
// each egress address: "egress 10.10.10.33 elsewhere # EgressIP/…". No tool has words for it.
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
	return b.String()
}

func end(b *strings.Builder, o cluster.Owner) {
	if o != (cluster.Owner{}) {
		b.WriteString(" # " + o.String())
	}
	b.WriteByte('\n')
}

// Parse reads what Print wrote.
func Parse(text string) (State, error) {
	var s State
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		rule, by, _ := strings.Cut(line, " # ")
		words, owner := strings.Fields(rule), cluster.ParseOwner(by)
		var err error
		switch {
		case len(words) > 1 && words[0] == "udp":
			err = s.parseUDP(words[1:], owner)
		case len(words) > 1 && words[0] == "egress":
			err = s.parseEgress(words[1:], owner)
		default:
			err = errors.New(`not "udp", an address and endpoints, or "egress" and an address`)
		}
		if err != nil {
			return State{}, fmt.Errorf("%q: %w", line, err)
		}
	}
	return s, nil
}

func (s *State) parseUDP(words []string, owner cluster.Owner) error {
	t := Targets{Owner: owner}
	vip, err := netip.ParseAddrPort(words[0])
	if err != nil {
		return err
	}
	list := &t.Live
	for _, w := range words[1:] {
		if w == "by" && list == &t.Live {
			list = &t.Steps
			continue
		}
		a, err := netip.ParseAddrPort(w)
		if err != nil {
			return err
		}
		*list = append(*list, a)
	}
	if _, twice := s.UDP[vip]; twice {
		return fmt.Errorf("a second line for %s", vip)
	}
	if s.UDP == nil {
		s.UDP = map[netip.AddrPort]Targets{}
	}
	s.UDP[vip] = t
	return nil
}

func (s *State) parseEgress(words []string, owner cluster.Owner) error {
	a, err := netip.ParseAddr(words[0])
	if err != nil {
		return err
	}
	elsewhere := len(words) == 2 && words[1] == "elsewhere"
	if len(words) > 1 && !elsewhere {
		return fmt.Errorf("%q after an egress address is not known", words[1])
	}
	if _, twice := s.Egress[a]; twice {
		return fmt.Errorf("a second line for %s", a)
	}
	if s.Egress == nil {
		s.Egress = map[netip.Addr]Egress{}
	}
	s.Egress[a] = Egress{elsewhere, owner}
	return nil
}
