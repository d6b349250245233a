package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"hairpin/lab"
	"hairpin/lab/attack"
)

// portOnHost is the hostPort of the trials.
const portOnHost = 8099

// hostTrials returns trials of what a node's host forwards to pods: a hostPort, and packets that a
// router of the external network sends to a pod's address. Policies must not take it for the
// node's own.
func hostTrials() []Trial {
	var list []Trial
	add := func(name string, f family, try func(ctx context.Context, w *world) error) {
		list = append(list, Trial{Name: "policy " + name + " ipv" + f.name, Not: []Exception{noPolicies},
			try: func(ctx context.Context, w *world) (string, error) { return "", try(ctx, w) }})
	}
	for _, f := range families() {
		for _, x := range []forwards{{isolated, isolatedTarget, "host-a", attacker},
			{"pod-c1", "podremote", "host-c", "pod-c2"}} {
			add("hostPort of "+x.pod, f, func(ctx context.Context, w *world) error { return w.hostPort(ctx, x, f) })
		}
		for _, node := range []string{"host-b", "host-c"} {
			add("routed in by "+node, f, func(ctx context.Context, w *world) error {
				return w.routedIn(ctx, forwards{pod: "pod-c1", target: "podremote"}, node, f)
			})
		}
	}
	return list
}

// forwards is a pod, its label "target", its node's host, and another pod there.
type forwards struct{ pod, target, host, neighbour string }

// hostPort gives a pod a hostPort, with rules as those of CNI's plugin portmap.
func (w *world) hostPort(ctx context.Context, x forwards, f family) (err error) {
	pod := w.endpoints[x.pod]
	ip := map[string]string{"4": "ip", "6": "ip6"}[f.name]
	undo, err := w.changed(ctx, x.host, fmt.Sprintf(`nft -f - <<'END'
table inet trial {
	chain pre { type nat hook prerouting priority dstnat; %[1]s; }
	chain out { type nat hook output priority dstnat; %[1]s; }
	chain post { type nat hook postrouting priority srcnat; %[2]s saddr %[3]s %[2]s daddr %[3]s masquerade; }
}
END`, fmt.Sprintf("fib daddr type local meta l4proto { tcp, udp } th dport %d dnat %s to %s", portOnHost, ip,
		pod.on(pod.port, f)), ip, pod.address(f)), "nft delete table inet trial")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	return w.forwarded(ctx, x, f, w.endpoints[x.host].on(portOnHost, f), []string{x.host, x.pod},
		[]string{clientName, "host-b", "pod-b1", x.neighbour})
}

// routedIn sends datagrams from the client to a pod's address by a node. The pod's replies do not
// leave the cluster, but it must not receive what its policies drop, whatever source the client
// claims.
func (w *world) routedIn(ctx context.Context, x forwards, node string, f family) error {
	client := w.endpoints[clientName].address(f)
	send, err := w.outsider(node)
	if err != nil {
		return err
	}
	server, err := attack.ListenUDP(w.endpoints[x.pod].place, 0)
	if err != nil {
		return err
	}
	defer server.Close()
	arrives := func(wants bool, sources ...netip.Addr) error {
		mark := newMark("routed")
		to := netip.AddrPortFrom(w.endpoints[x.pod].address(f), server.Port)
		for _, from := range sources {
			if err := send(from, to, mark); err != nil {
				return err
			}
		}
		if (server.Hear(ctx, w.patience(), contains(mark)) != nil) != wants {
			return fmt.Errorf("from one of %v it arrives: %v", sources, !wants)
		}
		return nil
	}
	open := func() error { return arrives(true, client) }
	if err := w.until(ctx, "without a policy", open); err != nil {
		return err
	}
	claimed := []netip.Addr{client}
	for _, name := range []string{management + nodeOf(node), join + nodeOf(node), node, "pod-c2"} {
		from, err := w.source(name, f)
		if err != nil {
			return err
		}
		claimed = append(claimed, from)
	}
	return w.underPolicies(ctx, x, f, func() error { return arrives(false, claimed...) }, open)
}

// forwarded tries all clients without a policy and with each. With one that accepts nothing, only
// the own ones pass.
func (w *world) forwarded(ctx context.Context, x forwards, f family, to netip.AddrPort, own, others []string) error {
	try := func(from []string, passes bool) error {
		var tries []func() error
		for _, client := range from {
			for _, protocol := range []string{"tcp", "udp"} {
				tries = append(tries, func() error {
					err := w.probeOne(ctx, client, protocol, to, passes, w.patience())
					if err != nil {
						err = fmt.Errorf("from %s over %s: %w", client, protocol, err)
					}
					return err
				})
			}
		}
		return lab.Together(tries...)
	}
	all := func() error { return try(append(slices.Clone(own), others...), true) }
	if err := w.until(ctx, "without a policy", all); err != nil {
		return err
	}
	return w.underPolicies(ctx, x, f, func() error { return errors.Join(try(own, true), try(others, false)) }, all)
}

// underPolicies checks what holds with a policy that accepts nothing, and with one that accepts the
// join network.
func (w *world) underPolicies(ctx context.Context, x forwards, f family, closed, open func() error) error {
	for _, p := range []struct {
		rules string
		holds func() error
	}{{"", closed}, {"{from: [{ipBlock: {cidr: '" + f.joins.String() + "'}}]}", open}} {
		remove, err := w.putAll(ctx, podsNamespace,
			netpol("trial", x.target, "policyTypes: [Ingress], ingress: ["+p.rules+"]"))
		if err != nil {
			return err
		}
		err = w.until(ctx, "rules ["+p.rules+"] are in force", p.holds)
		if err == nil {
			err = p.holds() // it stays so
		}
		if err = errors.Join(err, remove()); err != nil {
			return err
		}
	}
	return nil
}
