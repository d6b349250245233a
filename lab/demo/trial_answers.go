package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"hairpin/lab"
)

// longAnswers makes a machine send a long reply to a pod with an egress address. With path MTU
// discovery, the machine learns the pods' MTU. Without it, the machine sets no "don't fragment" and
// ignores errors, so its packets must be fragmented on the path.
func (w *world) longAnswers(ctx context.Context, discovers bool) (note string, err error) {
	const pod, port = "pod-c1", clientPort + 10
	f := families()[0]
	if err := w.forgetMTUs(ctx); err != nil {
		return "", err
	}
	value := "2"
	if discovers {
		value = "0"
	}
	const setting = "sysctl -qw net.ipv4.ip_no_pmtu_disc="
	undo, err := w.changed(ctx, clientName, setting+value, setting+"0")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, undo()) }()
	stop, err := lab.Serve(ctx, w.endpoints[clientName].place, clientName, port)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, stop()) }()
	to := netip.AddrPortFrom(w.endpoints[clientName].address(f), port)
	address, remove, err := w.egressAddress(ctx, pod, to, f)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, remove()) }()
	conn, err := w.dial(ctx, pod, "udp", f, netip.AddrPort{}, to)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if !discovers {
		n, err := w.exchange(conn, 10, longPayload)
		if err != nil {
			return "", err
		}
		mtu, err := w.mtuTo(clientName, address)
		if err == nil && mtu != 0 {
			err = fmt.Errorf("the client learned an MTU of %d", mtu)
		}
		return triesNote(n), err
	}
	err = w.until(ctx, "the client learns the pods' MTU", func() error {
		_, _ = w.once(conn, fmt.Appendf(nil, "want %d", longPayload)) // the reply does not matter
		mtu, err := w.mtuTo(clientName, address)
		if err == nil && mtu != podMTU {
			err = fmt.Errorf("it has %d", mtu)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	n, err := w.exchange(conn, 10, podMTU-headers(f))
	return triesNote(n), err
}

// egressAddress gives pod-c1 an egress address and waits until a machine sees it.
func (w *world) egressAddress(
	ctx context.Context, pod string, to netip.AddrPort, f family,
) (address netip.Addr, remove func() error, err error) {
	const carrier = "node-b"
	base := w.endpoints["host-a"].address(f).As4()
	base[3] = 0xed
	address = netip.AddrFrom4(base)
	label := func(value any) error {
		return w.objects.set(context.WithoutCancel(ctx), "Node", carrier, labelsField, egressLabel, value)
	}
	if err := label(""); err != nil {
		return address, nil, err
	}
	removeAll, err := w.putAll(ctx, podsNamespace, fmt.Sprintf(`
apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: egressip-long}
spec:
  egressIPs: [%q]
  namespaceSelector: {matchLabels: {}}
  podSelector: {matchLabels: {target: podremote}}
status: {items: [{node: %s, egressIP: %q}]}
`, address, carrier, address))
	if err != nil {
		return address, nil, errors.Join(err, label(nil))
	}
	remove = func() error { return errors.Join(removeAll(), label(nil)) }
	err = w.until(ctx, "the pod has the egress address", func() error {
		conn, err := w.dial(ctx, pod, "udp", f, netip.AddrPort{}, to)
		if err != nil {
			return err
		}
		defer conn.Close()
		g, err := w.greeting(conn, "udp")
		if err == nil && g.Saw.Addr() != address {
			err = fmt.Errorf("the client saw %s", g.Saw)
		}
		return err
	})
	if err != nil {
		err = errors.Join(err, remove())
	}
	return address, remove, err
}
