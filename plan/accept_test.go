package plan_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/nb"
	"hairpin/plan"
)

// aged sets the age, in days, and the UID of a Service's Frontends.
func aged(f *cluster.Frontend, days int, uid string) *cluster.Frontend {
	f.Created, f.UID = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, -days), uid
	return f
}

func edited(f *cluster.Frontend, edit func(*cluster.Frontend)) *cluster.Frontend {
	edit(f)
	return f
}

func external(a string) func(*cluster.Frontend) {
	return func(f *cluster.Frontend) { f.ExternalIPs = []netip.Addr{addr(a)} }
}

func balanced(a string) func(*cluster.Frontend) {
	return func(f *cluster.Frontend) { f.LoadBalancerIPs = []netip.Addr{addr(a)} }
}

// servedAt returns the Services whose load balancers have a VIP.
func servedAt(s datapath.State, vip string) []string {
	var names []string
	for _, r := range s.NB {
		lb, ok := r.(*nb.LoadBalancer)
		if !ok || !slices.ContainsFunc(lb.VIPs, func(v nb.VIP) bool { return v.Addr == netip.MustParseAddrPort(vip) }) {
			continue
		}
		names = append(names, lb.Owner.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Of two Services that want the same, the older keeps it, whatever their names; then UIDs decide.
func TestOlderServiceWins(t *testing.T) {
	const vip, nodeVIP = "192.0.2.7:80", "172.18.0.3:30080"
	want := func(name string, i int, edit func(*cluster.Frontend)) *cluster.Frontend {
		return edited(frontend(name, fmt.Sprintf("10.96.0.%d:80", i), 0, "10.244.1.3:8080"), edit)
	}
	nodePort := func(name string, i int) *cluster.Frontend {
		return frontend(name, fmt.Sprintf("10.96.0.%d:80", i), 30080, "10.244.1.3:8080")
	}
	onNode := func(name string, i int) *cluster.Frontend {
		return edited(frontend(name, fmt.Sprintf("10.96.0.%d:30080", i), 0, "10.244.1.3:8080"), external("172.18.0.3"))
	}
	for _, c := range []struct {
		name, vip string
		list      []*cluster.Frontend
		keeps     string
		field     string
		elsewhere string // where the one that lost it is still served
	}{
		{"externalIPs: the older", vip, []*cluster.Frontend{aged(want("a", 1, external("192.0.2.7")), 1, "a"),
			aged(want("b", 2, external("192.0.2.7")), 9, "b")}, "b", "spec.externalIPs", "10.96.0.1:80"},
		{"externalIPs: of one second", vip,
			[]*cluster.Frontend{aged(want("a", 1, external("192.0.2.7")), 1, "2"),
				aged(want("b", 2, external("192.0.2.7")), 1, "1")}, "b", "spec.externalIPs", "10.96.0.1:80"},
		{"load balancers: the older", vip,
			[]*cluster.Frontend{aged(want("a", 1, balanced("192.0.2.7")), 1, "a"),
				aged(want("b", 2, balanced("192.0.2.7")), 9, "b")}, "b", "status.loadBalancer.ingress", "10.96.0.1:80"},
		{"a load balancer before an older externalIPs", vip,
			[]*cluster.Frontend{aged(want("a", 1, external("192.0.2.7")), 9, "a"),
				aged(want("b", 2, balanced("192.0.2.7")), 1, "b")}, "b", "spec.externalIPs", "10.96.0.1:80"},
		{"a cluster IP before an older externalIPs", "10.96.0.2:80",
			[]*cluster.Frontend{aged(want("a", 1, external("10.96.0.2")), 9, "a"), aged(nodePort("b", 2), 1, "b")}, "b",
			"spec.externalIPs", "10.96.0.1:80"},
		{"NodePorts", nodeVIP, []*cluster.Frontend{aged(nodePort("a", 1), 1, "a"), aged(nodePort("b", 2), 9, "b")}, "b",
			"spec.ports", "10.96.0.1:80"},
		{"an older NodePort, on a node's address", nodeVIP,
			[]*cluster.Frontend{aged(onNode("a", 1), 1, "a"), aged(nodePort("b", 2), 9, "b")}, "b", "spec.externalIPs",
			"10.96.0.1:30080"},
		{"a younger NodePort, on a node's address", nodeVIP,
			[]*cluster.Frontend{aged(nodePort("a", 1), 1, "a"), aged(onNode("b", 2), 9, "b")}, "b", "spec.ports",
			"172.20.0.7:30080"},
	} {
		for _, mode := range modes {
			n := node("node-a", 1, 3)
			n.HostAddresses = append(n.HostAddresses, prefix("172.20.0.7/32"))
			inMode(n, mode)
			state, problems := plan.Node(snapshot(n, c.list), "node-a")
			if got := strings.Join(servedAt(state, c.vip), " "); mode != cluster.ModeDetached && got != c.keeps {
				t.Errorf("%s, mode %s: %s serves %s, want %s", c.name, mode, got, c.vip, c.keeps)
			}
			if got := servedAt(state, c.elsewhere); !slices.Equal(got, []string{"a"}) {
				t.Errorf("%s, mode %s: %s is served by %v, want a", c.name, mode, c.elsewhere, got)
			}
			if len(problems) != 1 || problems[0].Owner.Name != "a" || problems[0].Field != c.field ||
				!strings.Contains(problems[0].Message, "Service/default/b") {
				t.Errorf("%s, mode %s: problems %v, want one of a's %s that names b", c.name, mode, problems, c.field)
			}
		}
	}
}

// A Service's own cluster IP is rejected as its external address.
func TestClusterIPAsOwnExternalIP(t *testing.T) {
	for field, edit := range map[string]func(*cluster.Frontend){
		"spec.externalIPs": external("10.96.0.1"), "status.loadBalancer.ingress": balanced("10.96.0.1"),
	} {
		f := edited(frontend("web", "10.96.0.1:80", 0, "10.244.1.3:8080"), edit)
		f.InternalLocal = true
		s := snapshot(node("node-b", 2, 4))
		s.Frontends = []*cluster.Frontend{f}
		state, problems := plan.Node(s, "node-b")
		if want := []cluster.Problem{{Owner: f.Owner, Field: field,
			Message: "10.96.0.1 is the cluster IP of the Service itself"}}; !slices.Equal(problems, want) {
			t.Errorf("%s: problems %v, want %v", field, problems, want)
		}
		for _, r := range state.NB {
			if lb, ok := r.(*nb.LoadBalancer); ok && strings.Contains(lb.Name, ":external") {
				t.Errorf("%s: load balancer %s", field, lb.Name)
			}
		}
	}
}

// A Service's port at an external address that is the node's has priority over the NodePort of
// another of its ports there.
func TestServicePortPrecedesOwnNodePort(t *testing.T) {
	list := func(node uint16) []*cluster.Frontend {
		outer := edited(frontend("web", "10.96.0.1:30080", 0, "10.244.1.3:8080"), external("172.18.0.3"))
		if node == 0 { // one port is both
			outer.NodePort = 30080
			return []*cluster.Frontend{outer}
		}
		outer.PortName = "outer"
		return []*cluster.Frontend{frontend("web", "10.96.0.1:80", node, "10.244.1.4:8080"), outer}
	}
	for _, mode := range modes {
		for port, want := range map[uint16][]plan.Problem{0: nil, 30081: nil, 30080: {{
			Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: "web"}, Field: "spec.ports",
			Message: "tcp node port 30080 of 172.18.0.3 is port 30080 of the Service itself there",
		}}} {
			n := node("node-a", 1, 3)
			inMode(n, mode)
			state, problems := plan.Node(snapshot(n, list(port)), "node-a")
			if !slices.Equal(problems, want) {
				t.Errorf("mode %s, NodePort %d: problems %v, want %v", mode, port, problems, want)
			}
			at := map[string]string{}
			for _, r := range state.NB {
				lb, ok := r.(*nb.LoadBalancer)
				if !ok {
					continue
				}
				for _, v := range lb.VIPs {
					k := fmt.Sprint(v.Addr, lb.Groups)
					if at[k] != "" {
						t.Errorf("mode %s, NodePort %d: %s is served by %s and %s", mode, port, k, at[k], lb.Name)
					}
					at[k] = lb.Name
				}
			}
		}
	}
}

// If an older Service has an endpoint outside the pod ranges, such as a server or a host, no
// younger Service can be served at its address and port.
func TestEndpointsOfOlderServicesAreNotTaken(t *testing.T) {
	const vip, elsewhere = "203.0.113.9:5432", "10.96.0.2:5432"
	victim := func(days int, uid string, endpoints ...string) *cluster.Frontend {
		return aged(frontend("victim", "10.96.0.1:80", 0, endpoints...), days, uid)
	}
	taker := func(days int, uid string, how func(*cluster.Frontend)) *cluster.Frontend {
		return aged(edited(frontend("taker", elsewhere, 0, "10.244.1.3:8080"), how), days, uid)
	}
	both := func(f *cluster.Frontend) {
		f.ExternalIPs = []netip.Addr{addr("203.0.113.9"), addr("203.0.113.10")}
	}
	udp := func(f *cluster.Frontend) { both(f); f.Protocol = cluster.UDP }
	const refused = "tcp port 5432 of 203.0.113.9 is an endpoint of Service/default/victim, which is older"
	for _, c := range []struct {
		name   string
		list   []*cluster.Frontend
		served bool
		field  string
	}{
		{"spec.externalIPs", []*cluster.Frontend{victim(9, "b", "203.0.113.9:5432"), taker(1, "a", both)}, false,
			"spec.externalIPs"},
		{"load balancer", []*cluster.Frontend{victim(9, "b", "203.0.113.9:5432"),
			taker(1, "a", balanced("203.0.113.9"))}, true, ""},
		{"load balancer and spec.externalIPs",
			[]*cluster.Frontend{victim(9, "b", "203.0.113.9:5432"), taker(1, "a", func(f *cluster.Frontend) {
				both(f)
				f.LoadBalancerIPs = f.ExternalIPs[:1]
			})}, true, ""},
		{"of one second", []*cluster.Frontend{victim(1, "a", "203.0.113.9:5432"), taker(1, "b", both)}, false,
			"spec.externalIPs"},
		{"one of several endpoints", []*cluster.Frontend{victim(9, "b", "10.244.1.3:80", "203.0.113.9:5432"),
			taker(1, "a", both)}, false, "spec.externalIPs"},
		{"another port", []*cluster.Frontend{victim(9, "b", "203.0.113.9:5433"), taker(1, "a", both)}, true, ""},
		{"another protocol", []*cluster.Frontend{victim(9, "b", "203.0.113.9:5432"), taker(1, "a", udp)}, true, ""},
		{"a younger Service's endpoint", []*cluster.Frontend{victim(1, "a", "203.0.113.9:5432"), taker(9, "b", both)},
			true, ""},
		{"no age", []*cluster.Frontend{edited(victim(0, "", "203.0.113.9:5432"), ageless),
			edited(taker(0, "", both), ageless)}, true, ""},
		{"its own endpoint", []*cluster.Frontend{edited(taker(9, "a", both), func(f *cluster.Frontend) {
			f.Backends = []cluster.Backend{{Addr: addr("203.0.113.9"), Port: 5432, Ready: true, Serving: true}}
		})}, true, ""},
	} {
		state, problems := plan.Node(snapshot(node("node-a", 1, 3), c.list), "node-a")
		if got := slices.Equal(servedAt(state, vip), []string{"taker"}); got != c.served {
			t.Errorf("%s: %s is served by %v", c.name, vip, servedAt(state, vip))
		}
		if !slices.Equal(servedAt(state, elsewhere), []string{"taker"}) || c.field == "spec.externalIPs" &&
			!slices.Equal(servedAt(state, "203.0.113.10:5432"), []string{"taker"}) {
			t.Errorf("%s: the Service is not served at its other addresses", c.name)
		}
		var want []cluster.Problem
		if !c.served {
			want = []cluster.Problem{{Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: "taker"},
				Field: c.field, Message: refused}}
		}
		if !slices.Equal(problems, want) {
			t.Errorf("%s: problems %v, want %v", c.name, problems, want)
		}
	}
}

func ageless(f *cluster.Frontend) { f.Created, f.UID = time.Time{}, "" }

// A secondary address of the host, such as one that moves, changes members of sets and load
// balancers: these cost northd little.
func TestHostAddressesChangeOnlyMembers(t *testing.T) {
	for _, mode := range modes {
		n := nodeIn(mode)
		n.HostAddresses = append(n.HostAddresses, prefix("172.20.0.7/32")) // the first one brings rows
		before, _ := plan.Node(snapshot(n, frontend("a", "10.96.0.1:80", 30080, "10.244.1.3:8080")), "node-a")
		n.HostAddresses = append(n.HostAddresses, prefix("172.20.0.8/32"))
		after, _ := plan.Node(snapshot(n, frontend("a", "10.96.0.1:80", 30080, "10.244.1.3:8080")), "node-a")
		changed := 0
		for k, r := range after.NB {
			if was := before.NB[k]; was != nil && nb.Equal(was, r) {
				continue
			}
			changed++
			if k.Table != nb.TableAddressSet && k.Table != nb.TableLoadBalancer {
				t.Errorf("mode %s: another address changes %s", mode, k)
			}
		}
		if changed == 0 {
			t.Errorf("mode %s: another address changes nothing", mode)
		}
	}
}
