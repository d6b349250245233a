package admission

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/cluster/trust"
)

// TestProxyPortsRunOut: one Service gets at most maxPortsPerService proxy ports. When all are in
// use, a Service without one gets a port that another Service releases, the oldest first.
func TestProxyPortsRunOut(t *testing.T) {
	var all []*cluster.Frontend
	owner := func(i int) cluster.Owner {
		return cluster.Owner{Kind: "Service", Namespace: "default", Name: fmt.Sprintf("service-%02d", i)}
	}
	for i := range 1 + portCount/maxPortsPerService { // the last ones get the rest
		for port := range maxPortsPerService + 1 {
			all = append(all, &cluster.Frontend{
				Owner: owner(i), Created: time.Unix(int64(i), 0), Family: cluster.IPv4, Protocol: cluster.TCP,
				PortName:  fmt.Sprintf("p%d", port),
				ClusterIP: netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)}), Port: uint16(port + 1),
				ExternalLocal: true,
				ExternalIPs:   []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})},
			})
		}
	}
	r := New(Facts{Node: &cluster.Node{Name: "n"}, Vetted: &trust.Vetted{}}, all, Allocations{})
	served := func() (with int) {
		list, _ := r.Admitted()
		for _, f := range list {
			with += len(f.ExternalIPs)
		}
		return with
	}
	count := func(text string) (n int) {
		_, problems := r.Admitted()
		for _, p := range problems {
			if strings.Contains(p.Message, text) {
				n++
			}
		}
		return n
	}
	const last = portCount / maxPortsPerService
	if got := served(); got != portCount {
		t.Errorf("%d of %d ports are in use", got, portCount)
	}
	own, none := count("more than 4000 tcp ports of the Service"), count("all 62761 tcp ports")
	if own != last || none != 1 { // each Service reports its own limit once
		t.Errorf("%d Services are beyond their limit, %d found no free number", own, none)
	}
	r.Update(r.facts.Vetted, nil, []cluster.Owner{owner(0)}, all[maxPortsPerService+1:])
	if got := served(); got != last*maxPortsPerService {
		t.Errorf("%d ports are in use after a Service with %d went", got, maxPortsPerService)
	}
	if !slices.ContainsFunc(r.services[owner(last)].admitted,
		func(f *Frontend) bool { return len(f.ExternalIPs) > 0 && f.Port == maxPortsPerService }) {
		t.Error("the youngest Service has none of the ports that are free again")
	}
}

// TestNamesTakeNoProxyPort: an older Service whose port names try the first 100 ports of a younger
// Service first takes only these.
func TestNamesTakeNoProxyPort(t *testing.T) {
	const tries = 100
	frontend := func(name string, created int64, port int, portName string) *cluster.Frontend {
		return &cluster.Frontend{
			Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: name}, Created: time.Unix(created, 0),
			Family: cluster.IPv4, Protocol: cluster.TCP, PortName: portName,
			ClusterIP: netip.AddrFrom4([4]byte{10, 96, 0, byte(created)}),
			Port:      uint16(port), ExternalLocal: true,
			ExternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(created)})},
		}
	}
	victim := frontend("db", 9, 80, "")
	wanted := map[uint16]bool{}
	for i := range tries {
		wanted[sequenceOf(victim).at(i)] = true
	}
	all := []*cluster.Frontend{victim}
	for i := 0; len(all) <= tries; i++ {
		f := frontend("tenant", 8, 1000+len(all), fmt.Sprintf("p%d", i))
		if n := sequenceOf(f).at(0); wanted[n] {
			all = append(all, f)
			delete(wanted, n)
		}
	}
	admitted, problems := New(Facts{Node: &cluster.Node{Name: "n"}, Vetted: &trust.Vetted{}}, all,
		Allocations{}).Admitted()
	ports := map[uint16]bool{}
	for _, f := range admitted {
		ports[f.ProxyPort()] = true
	}
	if len(problems) > 0 || len(ports) != 1+tries {
		t.Errorf("%d ports for %d Frontends, problems %v", len(ports), 1+tries, problems)
	}
}
