//go:build e2e

package e2e

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"hairpin/lab"
	"hairpin/lab/cluster"
)

// TestReach sends requests to every Service by name and address, TCP and UDP, IPv4 and IPv6, from
// pods, nodes, and an external client.
func TestReach(t *testing.T) {
	e := open(t)
	n := e.reachAll()
	t.Logf("%d requests answered", n)
}

// reachAll fails the test unless everything is reachable; it returns the number of requests.
func (e *e2e) reachAll() (asked int) {
	e.Helper()
	begin := time.Now()
	asked += e.reachByName()
	asked += e.reachByAddress()
	e.Logf("%d requests in %s", asked, time.Since(begin).Round(time.Millisecond))
	return asked
}

// reachByName sends requests to names from a pod of every node.
func (e *e2e) reachByName() (asked int) {
	e.Helper()
	for _, p := range e.pods("client") {
		for _, to := range []struct {
			name      string
			port      int
			protocols []string
			answers   int // of both families
		}{
			{"web", 80, []string{"tcp", "udp"}, 2},
			{"web.default.svc.cluster.local", 80, []string{"tcp", "udp"}, 2},
			{"web-headless", 8080, []string{"tcp", "udp"}, 2 * 3},
			{"web-nodeport", 80, []string{"tcp", "udp"}, 2},
			{"host", 80, []string{"tcp", "udp"}, 2},
			{"db-0.db", 8080, []string{"tcp"}, 2},
			{"db-2.db.default.svc.cluster.local", 8080, []string{"tcp"}, 2},
		} {
			for _, protocol := range to.protocols {
				e.until(fmt.Sprintf("pod on %s → %s %s: %d answers", p.Spec.NodeName, protocol, to.name, to.answers),
					20*time.Second, func() (bool, error) {
						answers, err := e.askByName(p.Name, protocol, fmt.Sprintf("%s:%d", to.name, to.port))
						asked += len(answers)
						if err == nil && len(answers) != to.answers { // names are remembered for 5 s
							err = fmt.Errorf("%d answers", len(answers))
						}
						return err == nil, err
					})
			}
		}
	}
	return asked
}

// reachByAddress sends requests to ClusterIPs from pods and nodes, and to NodePorts and pods from
// every place that can reach them.
func (e *e2e) reachByAddress() (asked int) {
	e.Helper()
	ask := func(from lab.Place, to netip.AddrPort) {
		for _, protocol := range []string{"tcp", "udp"} {
			asked++
			if err := e.ask(from, protocol, to); err != nil {
				e.Error(err)
			}
		}
	}
	inside := []lab.Place{}
	for _, n := range e.Lab().Nodes() {
		inside = append(inside, n.Host)
	}
	for _, p := range e.pods("client") {
		inside = append(inside, e.place(p.Name))
	}
	for _, from := range inside {
		for _, s := range []string{"web", "web-nodeport", "host"} {
			for _, ip := range e.service(s) {
				ask(from, netip.AddrPortFrom(ip, 80))
			}
		}
		for _, p := range e.pods("web") {
			for _, ip := range p.Status.PodIPs {
				ask(from, netip.AddrPortFrom(netip.MustParseAddr(ip.IP), 8080))
			}
		}
	}
	for _, from := range append(inside, e.Lab().Host(cluster.ClientName)) {
		for _, n := range e.Lab().Nodes() {
			for _, a := range n.Addresses() {
				ask(from, netip.AddrPortFrom(a.Addr(), 30080))
				ask(from, netip.AddrPortFrom(a.Addr(), 30090))
			}
		}
	}
	return asked
}
