package selftest

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"hairpin/selftest/podside"
	"hairpin/ui"
)

// check is a check of one path, and its result.
type check struct {
	podside.Check
	name     string
	client   client
	pod      string            // the pod of the server; empty = none of the test
	question ui.ExplainOptions // the same path, for explain
	result   podside.Result
	baseline *check // of a measurement: the path to compare it with
	explain  string // of a failure
}

// client is where a check starts: a pod of its own, or the host, of a node; or the machine of this
// program.
type client struct {
	node int
	host bool
	here bool
}

// group has the checks of one kind of path.
type group struct {
	title  string
	checks []*check
}

// clientName returns the name of a client's pod. There is one for each role.
func clientName(role string, node int, host bool) string {
	if host {
		role = "host" + role
	}
	return fmt.Sprintf("%s-%d", role, node)
}

// target is what a check sends to: an address and port for each protocol and family, and its name
// for explain.
type target struct {
	group, name string
	pod         string                                        // of the server; empty = none of the test
	at          func(protocol string, v6 bool) netip.AddrPort // invalid: there is none
	explain     ui.ExplainOptions                             // without From; without To: the address
}

// matrix collects checks by group.
type matrix struct {
	*test
	list []*group
}

// groups returns the checks of every path. Each node is a client of itself and of the next node, so
// their number grows with the nodes, not with the square of it.
func (t *test) groups() []*group {
	m := &matrix{test: t}
	for _, host := range []bool{false, true} {
		for i := range t.nodes {
			c := client{node: i, host: host}
			for _, j := range slices.Compact([]int{i, (i + 1) % len(t.nodes)}) {
				m.servers(c, j)
				m.policies(c, j)
			}
			m.dns(c, (i+1)%len(t.nodes))
			if !host {
				itself := t.onService("itself through ClusterIP", selfName(i), "", servicePort)
				itself.name = itself.group
				m.add(c, itself, podside.Check{Kind: podside.Answers, Server: clientName("client", i, false)}, "tcp",
					"udp")
			}
			for _, o := range t.Outside {
				to, err := netip.ParseAddrPort(o)
				if err != nil {
					continue // rejected before
				}
				m.add(c, target{group: "outside", name: o, at: func(_ string, v6 bool) netip.AddrPort {
					if v6 != to.Addr().Is6() {
						return netip.AddrPort{}
					}
					return to
				}}, podside.Check{Kind: podside.Accepts}, "tcp")
			}
		}
	}
	if !t.FromHere {
		return m.list
	}
	for j := range t.nodes {
		for _, via := range slices.Compact([]int{j, (j + 1) % len(t.nodes)}) {
			m.add(client{here: true}, t.onNodePort(j, via, "pod on "+t.nodes[j].Name),
				podside.Check{Kind: podside.Answers, Server: serverName(j)}, "tcp", "udp")
		}
	}
	return m.list
}

// servers adds the checks of one node's servers.
func (m *matrix) servers(c client, j int) {
	on := "pod on " + m.nodes[j].Name
	server := podside.Check{Kind: podside.Answers, Server: serverName(j)}
	own := server
	own.Source = !c.host // packets between pods are not translated
	full := podside.Check{Kind: podside.Full}
	pod := m.onPod("pod", serverName(j), on, answerPort)
	service := m.onService("ClusterIP", serverName(j), on, servicePort)
	m.add(c, pod, own, "tcp", "udp")
	m.add(c, service, own, "tcp", "udp")
	m.add(c, m.onService("ClusterIP of a server on a host", hostServerName(j), "host "+m.nodes[j].Name, servicePort),
		podside.Check{Kind: podside.Answers, Server: hostServerName(j)}, "tcp", "udp")
	for _, via := range slices.Compact([]int{c.node, (c.node + 1) % len(m.nodes)}) {
		m.add(c, m.onNodePort(j, via, on), server, "tcp", "udp")
	}
	node := m.onHost(j)
	m.add(c, node, podside.Check{Kind: podside.Answers, Server: hostServerName(j)}, "tcp", "udp")
	for _, to := range []target{pod, service, node} {
		to.group = "full packets"
		m.add(c, to, full, "udp", "tcp")
	}
}

// policies adds the checks of a guarded pod. A NetworkPolicy accepts pods at one of its ports, and
// never stops its own node.
func (m *matrix) policies(c client, j int) {
	const accepts, drops = "NetworkPolicy accepts", "NetworkPolicy drops"
	on := "pod on " + m.nodes[j].Name
	answers := podside.Check{Kind: podside.Answers, Server: guardedName(j)}
	blocked := podside.Check{Kind: podside.Blocked}
	switch {
	case !c.host:
		m.add(c, m.onPod(accepts, guardedName(j), on, answerPort), answers, "tcp", "udp")
		m.add(c, m.onService(accepts, guardedName(j), on, servicePort), answers, "tcp", "udp")
		m.add(c, m.onPod(drops, guardedName(j), on, blockedPort), blocked, "tcp", "udp")
		m.add(c, m.onService(drops, guardedName(j), on, serviceBlockedPort), blocked, "tcp")
	case c.node == j:
		m.add(c, m.onPod(accepts, guardedName(j), on, answerPort), answers, "tcp", "udp")
	default:
		m.add(c, m.onPod(drops, guardedName(j), on, answerPort), blocked, "tcp", "udp")
	}
}

// dns adds the checks of names in DNS.
func (m *matrix) dns(c client, j int) {
	service := m.services[serverName(j)]
	for _, host := range []string{service.Name, service.Name + "." + m.Namespace + ".svc"} {
		n := &check{Check: podside.Check{Kind: podside.Resolves, Host: host, Want: clusterIPs(service)}, client: c,
			name: m.from(c) + " resolves " + host}
		n.question.To, n.question.Proto = "svc/kube-system/kube-dns:53", "udp"
		m.put("DNS", n)
	}
}

// add adds a check of each protocol and family to a target, if its pod runs.
func (m *matrix) add(c client, to target, k podside.Check, protocols ...string) {
	for _, v6 := range []bool{false, true} {
		for _, protocol := range protocols {
			at := to.at(protocol, v6)
			if !at.IsValid() || m.down[to.pod] {
				continue
			}
			k.Protocol, k.To = protocol, at
			n := &check{Check: k, client: c, pod: to.pod, question: to.explain}
			family := map[bool]string{false: "IPv4", true: "IPv6"}[v6]
			n.name = fmt.Sprintf("%s → %s, %s, %s", m.from(c), to.name, protocol, family)
			n.question.Proto, n.question.IPFamily = protocol, family
			if n.question.To == "" {
				n.question.To = at.String()
			}
			m.put(to.group, n)
		}
	}
}

// put adds a check to the group of its client's kind and title, unless it is to be skipped.
func (m *matrix) put(title string, n *check) {
	title = n.client.kind() + " → " + title
	if m.skip.MatchString(title) || m.skip.MatchString(n.name) {
		return
	}
	switch {
	case n.client.here:
		n.question.From = "outside"
	case n.client.host:
		n.question.From = "host/" + m.nodes[n.client.node].Name
	default:
		n.question.From = "pod/" + m.Namespace + "/" + clientName("client", n.client.node, false)
	}
	for _, g := range m.list {
		if g.title == title {
			g.checks = append(g.checks, n)
			return
		}
	}
	m.list = append(m.list, &group{title, []*check{n}})
}

func (c client) kind() string {
	switch {
	case c.here:
		return "outside"
	case c.host:
		return "host"
	}
	return "pod"
}

func (t *test) from(c client) string {
	switch {
	case c.here:
		return "this machine"
	case c.host:
		return "host " + t.nodes[c.node].Name
	}
	return "pod on " + t.nodes[c.node].Name
}

func (t *test) onPod(group, pod, name string, port int32) target {
	to := target{group: group, name: name, pod: pod}
	if port == blockedPort {
		to.name += " port 8081"
	}
	to.explain.To = fmt.Sprintf("pod/%s/%s:%d", t.Namespace, pod, port)
	var list []netip.Addr
	if p := t.pods[pod]; p != nil {
		for _, ip := range p.Status.PodIPs {
			list = appendAddr(list, ip.IP)
		}
	}
	to.at = func(_ string, v6 bool) netip.AddrPort { return withPort(list, v6, port) }
	return to
}

// onService returns the ClusterIPs of a Service.
func (t *test) onService(group, service, name string, port int32) target {
	s := t.services[service]
	to := target{group: group, name: "ClusterIP → " + name, pod: s.Spec.Selector[podLabel]}
	to.explain.To = fmt.Sprintf("svc/%s/%s:%d", t.Namespace, service, port)
	list := clusterIPs(s)
	to.at = func(_ string, v6 bool) netip.AddrPort { return withPort(list, v6, port) }
	return to
}

// onNodePort returns the NodePorts of a Service at a node.
func (t *test) onNodePort(j, via int, name string) target {
	service := t.services[nodePortName(j)]
	to := target{group: "NodePort", name: fmt.Sprintf("NodePort of %s → %s", t.nodes[via].Name, name),
		pod: serverName(j)}
	to.explain.To = fmt.Sprintf("svc/%s/%s:%d", t.Namespace, service.Name, servicePort)
	to.explain.NodePort, to.explain.Via = true, t.nodes[via].Name
	to.at = func(protocol string, v6 bool) netip.AddrPort {
		return withPort(nodeAddresses(&t.nodes[via]), v6, nodePort(service, protocol))
	}
	return to
}

// nodePort returns the NodePort of an entry.
func nodePort(s *corev1.Service, name string) int32 {
	for _, p := range s.Spec.Ports {
		if p.Name == name {
			return p.NodePort
		}
	}
	return 0
}

func nodeAddresses(n *corev1.Node) (list []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			list = appendAddr(list, a.Address)
		}
	}
	return list
}

func clusterIPs(s *corev1.Service) (list []netip.Addr) {
	for _, ip := range s.Spec.ClusterIPs {
		list = appendAddr(list, ip)
	}
	return list
}

func appendAddr(list []netip.Addr, text string) []netip.Addr {
	if a, err := netip.ParseAddr(text); err == nil {
		return append(list, a)
	}
	return list
}

// withPort returns the first address of a family with a port; invalid if there is none.
func withPort(list []netip.Addr, v6 bool, port int32) netip.AddrPort {
	for _, a := range list {
		if a.Is6() == v6 {
			return netip.AddrPortFrom(a, uint16(port))
		}
	}
	return netip.AddrPort{}
}

// paths returns the measurements, from the first node to the next, of the first family that both
// nodes have. Each but the first is compared with a path without the Service, or without the pod
// network.
func (t *test) paths() []*check {
	j := 1 % len(t.nodes)
	on := "pod on " + t.nodes[j].Name
	measure := func(host bool, to target, sink int32, baseline *check) *check {
		c := client{host: host}
		v6 := !to.at("tcp", false).IsValid()
		return &check{Check: podside.Check{Kind: podside.Measures, Protocol: "tcp", To: to.at("tcp", v6),
			Sink: uint16(sink), For: t.Measure}, client: c, pod: to.pod, baseline: baseline,
			name: t.from(c) + " → " + to.name}
	}
	pod, service := t.onPod("", serverName(j), on, answerPort), t.onService("", serverName(j), on, servicePort)
	direct := measure(true, t.onHost(j), int32(t.HostPort)+2, nil)
	fromHost := measure(true, pod, sinkPort, direct)
	fromPod := measure(false, pod, sinkPort, direct)
	list := []*check{
		direct, fromHost, measure(true, service, serviceSinkPort, fromHost),
		measure(true, t.onNodePort(j, j, on), nodePort(t.services[nodePortName(j)], "sink"), fromHost),
		fromPod, measure(false, service, serviceSinkPort, fromPod),
	}
	return slices.DeleteFunc(list, func(c *check) bool { return !c.To.IsValid() || t.down[c.pod] })
}

// onHost returns the server in the network of a node.
func (t *test) onHost(j int) target {
	return target{group: "node address", name: "host " + t.nodes[j].Name, pod: hostServerName(j),
		at: func(_ string, v6 bool) netip.AddrPort {
			return withPort(nodeAddresses(&t.nodes[j]), v6, int32(t.HostPort))
		}}
}
