package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/attack"
	"hairpin/lab/probe"
)

// externalTrials returns trials of an endpoint on a node's host, at an address and port that
// another Service has as an external address. OVN has load-balanced a pod's packet to it, and the
// host must not do so again.
func externalTrials() []Trial {
	var list []Trial
	for _, f := range families() {
		list = append(list, Trial{Name: "balanced once pod-a2 edge-host ClusterIP tcp" + f.name, Group: "balanced once",
			try: func(ctx context.Context, w *world) (string, error) { return w.balancedOnce(ctx, f) }})
	}
	for _, f := range families() {
		list = append(list, Trial{Name: "ping pod-a2 addresses of its host icmp" + f.name, Group: "ping host",
			try: func(ctx context.Context, w *world) (string, error) { return w.pingHost(ctx, f) }},
			Trial{Name: "neighbors of a node whose address is an external IP tcp" + f.name, Group: "neighbor of a node",
				try: func(ctx context.Context, w *world) (string, error) { return w.steadyNeighbor(ctx, f) }})
	}
	for _, policy := range []string{"Cluster", "Local"} {
		for _, f := range families() {
			list = append(list, Trial{Name: "load balancer address of a node, policy " + policy + " tcp" + f.name,
				Group: "neighbor of a node", try: func(ctx context.Context, w *world) (string, error) {
					return w.nodeBalancer(ctx, f, policy)
				}})
		}
	}
	return append(list, Trial{Name: "link-local address of the host tcp4", Group: "host address",
		try: func(ctx context.Context, w *world) (string, error) {
			return w.linkLocal(ctx)
		}})
}

// linkLocal adds the address of NodeLocal DNSCache to host-a. The host's server must reply to pods
// of the node at that address.
func (w *world) linkLocal(ctx context.Context) (note string, err error) {
	const client, host, address = "pod-a2", "host-a", "169.254.20.10"
	node := w.lab.Node("node-a")
	if _, err := node.Exec(ctx, "ip", "address", "add", address+"/32", "dev", "lo"); err != nil {
		return "", err
	}
	defer func() {
		_, undo := node.Exec(ctx, "ip", "address", "delete", address+"/32", "dev", "lo")
		err = errors.Join(err, undo)
	}()
	return "", w.answered(ctx, client, host, netip.AddrPortFrom(netip.MustParseAddr(address), hostPort))
}

func (w *world) balancedOnce(ctx context.Context, f family) (note string, err error) {
	const client, pod, host = "pod-a2", "pod-a1", "host-a"
	port := map[string]uint16{"4": hostPort + 1, "6": hostPort + 2}[f.name] // hostPort belongs to an older Service
	at, to := netip.AddrPortFrom(w.endpoints[host].address(f), port), netip.AddrPortFrom(tenantIP(f, 5), 80)
	stop, err := lab.Serve(ctx, w.endpoints[host].place, host, port)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, stop()) }()
	remove, err := w.putAll(ctx, tenantSlice("edge"+f.name, f, podPort, w.endpoints[pod].address(f)),
		tenantService("edge"+f.name, f, tenantIP(f, 4), at.Port(), at.Addr()))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, remove(), w.answered(ctx, host, host, at)) }()
	// The same map redirects the host's own packets and those that arrive at it.
	if err := w.answered(ctx, host, pod, at); err != nil {
		return "", err
	}
	// An endpoint of an older Service would not be redirected.
	if err := w.tick(ctx); err != nil {
		return "", err
	}
	removeHost, err := w.putAll(ctx, tenantSlice("edge-host"+f.name, f, at.Port(), at.Addr()),
		tenantService("edge-host"+f.name, f, to.Addr(), to.Port()))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, removeHost()) }()
	if err := w.answered(ctx, client, host, to); err != nil {
		return "", err
	}
	if a := w.asks(ctx, host, at); a.Name != pod {
		return "", fmt.Errorf("%q answers at %s: %s", a.Name, at, a.Error)
	}
	return "", nil
}

// pingHost checks that a pod's pings to all addresses of its host are answered, including those of
// the host and the router in the pod network. One address is of a foreign network, was just added
// and is deprecated.
func (w *world) pingHost(ctx context.Context, f family) (note string, err error) {
	const client, host = "pod-a2", "host-a"
	from, node := w.endpoints[client], w.lab.Node("node-a")
	added := map[string]string{"4": "192.0.2.77/32", "6": "2001:db8:77::77/128"}[f.name]
	if _, err := node.Exec(ctx, "ip", "address", "add", added, "dev", "lo", "preferred_lft", "0"); err != nil {
		return "", err
	}
	defer func() {
		_, undo := node.Exec(context.WithoutCancel(ctx), "ip", "address", "delete", added, "dev", "lo")
		err = errors.Join(err, undo)
	}()
	mp0, err := w.source(management+"node-a", f)
	if err != nil {
		return "", err
	}
	mac, err := attack.MAC(from.place, podLink)
	if err != nil {
		return "", err
	}
	ear, err := attack.Listen(from.place, podLink)
	if err != nil {
		return "", err
	}
	defer ear.Close()
	mp0MAC, err := attack.MAC(w.endpoints[host].place, claims.ManagementPort)
	if err != nil {
		return "", err
	}
	asked := map[netip.Addr]cluster.MAC{
		w.endpoints[host].address(f): w.gatewayMAC(), ofFamily(w.nodes["node-a"].others, f): w.gatewayMAC(),
		netip.MustParsePrefix(added).Addr(): w.gatewayMAC(), w.gateway(f): w.gatewayMAC(), mp0: mp0MAC,
	}
	for to, next := range asked {
		if err := w.until(ctx, "answer to a ping of "+to.String(), func() error {
			mark := newMark("ping")
			frame := attack.Frame(mac, next, attack.Echo(from.address(f), to, mark))
			if err := attack.Send(from.place, podLink, frame); err != nil {
				return err
			}
			if ear.Hear(ctx, w.longer(300*time.Millisecond), contains(mark)) == nil {
				return errors.New("there is none")
			}
			return nil
		}); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("(%d addresses)", len(asked)), nil
}

// nodeBalancer gives a Service the address of node-a as its load balancer address. Its status says
// that one of its two port numbers is served there, over each protocol. At the other, the host's
// own server replies.
func (w *world) nodeBalancer(ctx context.Context, f family, policy string) (note string, err error) {
	const pod, host = "pod-a1", "host-a"
	a, name := w.endpoints[host].address(f), "node-balancer-"+strings.ToLower(policy)+f.name
	number := map[string]int{"Cluster": 7, "Local": 8}[policy]
	port := uint16(7200 + number)
	service := strings.Replace(tenantService(name, f, tenantIP(f, number), port), "type: ClusterIP",
		"type: LoadBalancer\n  allocateLoadBalancerNodePorts: false\n  externalTrafficPolicy: "+policy, 1)
	more, recorded, targets := "protocol: TCP}", fmt.Sprintf("{port: %d, protocol: TCP}", port), "protocol: TCP}"
	for _, protocol := range []string{"UDP", "SCTP"} {
		more += fmt.Sprintf(", {name: %s, port: %d, protocol: %s}", strings.ToLower(protocol), port, protocol)
		recorded += fmt.Sprintf(", {port: %d, protocol: %s}", port, protocol)
		targets += fmt.Sprintf(", {name: %s, port: %d, protocol: %s}", strings.ToLower(protocol), podPort, protocol)
	}
	service = strings.Replace(service, "protocol: TCP}]",
		fmt.Sprintf("%s, {name: other, port: %d}]", more, hostPort), 1)
	service += fmt.Sprintf("status: {loadBalancer: {ingress: [{ip: %q, ports: [%s, "+
		"{port: %d, protocol: TCP, error: %s}]}]}}\n", a, recorded, hostPort, cluster.ErrorPort)
	slice := strings.Replace(tenantSlice(name, f, podPort, w.endpoints[pod].address(f)), "protocol: TCP}]",
		fmt.Sprintf("%s, {name: other, port: %d, protocol: TCP}]", targets, podPort), 1)
	slice = strings.Replace(slice, "conditions:", "nodeName: node-a, conditions:", 1)
	remove, err := w.putAll(ctx, slice, service)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, remove()) }()
	for _, from := range []string{clientName, host, "pod-a2", "pod-b1"} {
		if err := errors.Join(w.answered(ctx, from, pod, netip.AddrPortFrom(a, port)),
			w.answered(ctx, from, host, netip.AddrPortFrom(a, hostPort))); err != nil {
			return "", err
		}
	}
	protocols := []string{"tcp", "udp"}
	if w.sctp {
		protocols = append(protocols, "sctp")
	}
	for _, protocol := range protocols {
		for _, from := range []string{clientName, host, "pod-a2", "pod-b1"} {
			r := probe.Request{Protocol: protocol, To: netip.AddrPortFrom(a, port), Timeout: w.longer(time.Second)}
			var answer probe.Answer
			if err := w.until(ctx, protocol+" from "+from, func() error {
				if answer = lab.Get(ctx, w.endpoints[from].place, r); answer.Name != pod {
					return fmt.Errorf("%s %s", answer.Name, answer.Error)
				}
				return nil
			}); err != nil {
				return "", err
			}
			saw := answer.Saw.Addr()
			if is := saw == w.endpoints[from].address(f); from == clientName && is != (policy == "Local") {
				return "", fmt.Errorf("%s: %s sees the client as %s", protocol, pod, saw)
			}
		}
	}
	return "over " + strings.Join(protocols, ", "), nil
}

// steadyNeighbor checks that an external machine that forgets a node's MAC learns the same one
// again. Meanwhile Services with the node's address as external IP come and go.
func (w *world) steadyNeighbor(ctx context.Context, f family) (note string, err error) {
	const client, pod, host = clientName, "pod-a1", "host-b"
	at, machine := w.endpoints[host].address(f), w.lab.Host(clientName)
	lookUp := func() (string, error) {
		if _, err := machine.Exec(ctx, "ip", "neighbor", "flush", "to", at.String()); err != nil {
			return "", err
		}
		if err := w.answered(ctx, client, host, netip.AddrPortFrom(at, hostPort)); err != nil {
			return "", err
		}
		text, err := machine.Exec(ctx, "ip", "neighbor", "show", "to", at.String())
		if fields := strings.Fields(text); err == nil && len(fields) > 4 && fields[3] == "lladdr" {
			return fields[4], nil
		}
		return "", errors.Join(err, fmt.Errorf("neighbor %q", text))
	}
	first, err := lookUp()
	if err != nil {
		return "", err
	}
	for turn := range 5 {
		name, port := "steady"+f.name, uint16(7100+turn)
		remove, err := w.putAll(ctx, tenantSlice(name, f, podPort, w.endpoints[pod].address(f)),
			tenantService(name, f, tenantIP(f, 6), port, at))
		if err != nil {
			return "", err
		}
		err = w.answered(ctx, client, pod, netip.AddrPortFrom(at, port))
		for _, change := range []func() error{func() error { return err }, remove} {
			err := change()
			now, errLook := lookUp()
			if err := errors.Join(err, errLook); err != nil {
				return "", err
			}
			if now != first {
				return "", fmt.Errorf("turn %d: the neighbor's MAC is %s, not %s", turn, now, first)
			}
		}
	}
	return "", nil
}
