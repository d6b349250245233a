package conntrack

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"hairpin/datapath/conn"
)

// entry is a translated UDP connection in Open vSwitch.
type entry struct {
	conn.Pair
	client netip.AddrPort
	zone   uint16
}

// readDump reads what a listing of Open vSwitch has of translated UDP connections:
// "udp,orig=(src=…,dst=…,sport=…,dport=…),reply=(src=…,dst=…,sport=…,dport=…),zone=…".
func readDump(text string) []entry {
	var list []entry
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "udp,orig=(")
		if !ok {
			continue
		}
		original, rest, ok := strings.Cut(rest, "),reply=(")
		reply, rest, ok2 := strings.Cut(rest, ")")
		var e entry
		var ok3, ok4, ok5 bool
		e.client, ok3 = side(original, "src", "sport")
		e.VIP, ok4 = side(original, "dst", "dport")
		e.To, ok5 = side(reply, "src", "sport")
		if !ok || !ok2 || !ok3 || !ok4 || !ok5 || e.VIP == e.To {
			continue
		}
		for _, field := range strings.Split(rest, ",") {
			if text, is := strings.CutPrefix(field, "zone="); is {
				n, err := strconv.ParseUint(text, 10, 16)
				ok = err == nil
				e.zone = uint16(n)
			}
		}
		if ok {
			list = append(list, e)
		}
	}
	return list
}

// side reads one end of a direction.
func side(tuple, ip, port string) (netip.AddrPort, bool) {
	var a netip.Addr
	var n uint64
	for _, field := range strings.Split(tuple, ",") {
		var err error
		switch key, value, _ := strings.Cut(field, "="); key {
		case ip:
			a, err = netip.ParseAddr(value)
		case port:
			n, err = strconv.ParseUint(value, 10, 16)
		}
		if err != nil {
			return netip.AddrPort{}, false
		}
	}
	return netip.AddrPortFrom(a, uint16(n)), a.IsValid()
}

// words are the entry as dpctl/flush-conntrack wants it: its zone, and all five fields of the original direction. With
// fewer fields Open vSwitch 3.5 deletes while it lists, and crashes or hangs on the userspace datapath.
func (e *entry) words() []string {
	words := "ct_nw"
	if e.VIP.Addr().Is6() {
		words = "ct_ipv6"
	}
	return []string{
		fmt.Sprintf("zone=%d", e.zone),
		fmt.Sprintf("%s_src=%s,%s_dst=%s,ct_nw_proto=17,ct_tp_src=%d,ct_tp_dst=%d", words, e.client.Addr(), words, e.VIP.Addr(), e.client.Port(), e.VIP.Port()),
	}
}
