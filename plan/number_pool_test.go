package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/cluster"
)

// One Service gets at most maxNumbers ports of the proxy addresses. When all are in use, a Service without one gets that of a
// Service that goes, the oldest first.
func TestNumbersRunOut(t *testing.T) {
	var all []*cluster.Frontend
	owner := func(i int) cluster.Owner {
		return cluster.Owner{Kind: "Service", Namespace: "default", Name: fmt.Sprintf("service-%02d", i)}
	}
	for i := range 1 + numbers/maxNumbers { // the last ones get the rest
		for port := range maxNumbers + 1 {
			all = append(all, &cluster.Frontend{
				Owner: owner(i), Created: time.Unix(int64(i), 0), Family: cluster.IPv4, Protocol: cluster.TCP, PortName: fmt.Sprintf("p%d", port),
				ClusterIP: netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)}), Port: uint16(port + 1), ExternalLocal: true,
				ExternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})},
			})
		}
	}
	r := newRegistry(all, &Env{Node: &cluster.Node{Name: "n"}, Vetted: &cluster.Vetted{}}, nil, held{})
	served := func() (with int) {
		list, _ := r.served()
		for _, f := range list {
			with += len(f.ExternalIPs)
		}
		return with
	}
	count := func(text string) (n int) {
		_, problems := r.served()
		for _, p := range problems {
			if strings.Contains(p.Message, text) {
				n++
			}
		}
		return n
	}
	const last = numbers / maxNumbers
	if got := served(); got != numbers {
		t.Errorf("%d of %d numbers are in use", got, numbers)
	}
	own, none := count("more than 4000 tcp ports of the Service"), count("all 62761 tcp ports")
	if own != last || none != 1 { // each Service reports its own limit once
		t.Errorf("%d Services are beyond their limit, %d found no free number", own, none)
	}
	r.begin()
	r.set(owner(0), nil)
	r.finish()
	if got := served(); got != last*maxNumbers {
		t.Errorf("%d numbers are in use after a Service with %d went", got, maxNumbers)
	}
	if !slices.ContainsFunc(r.services[owner(last)].accepted, func(f *cluster.Frontend) bool { return len(f.ExternalIPs) > 0 && f.Port == maxNumbers }) {
		t.Error("the youngest Service has none of the numbers that are free again")
	}
}
