package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"hairpin/lab"
)

// externalTrials are of an endpoint on a node's host, at an address and port that another Service has as an external address:
// OVN has balanced a pod's packet to it, and the host must not balance it once more.
func externalTrials() []Trial {
	var list []Trial
	for _, f := range families() {
		list = append(list, Trial{Name: "balanced once pod-a2 edge-host ClusterIP tcp" + f.name, Group: "balanced once",
			try: func(ctx context.Context, w *world) (string, error) { return w.balancedOnce(ctx, f) }})
	}
	return append(list, Trial{Name: "link-local address of the host tcp4", Group: "host address", try: func(ctx context.Context, w *world) (string, error) {
		return w.linkLocal(ctx)
	}})
}

// linkLocal gives host-a the address of NodeLocal DNSCache, at which the host's server answers pods of the node.
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
	port := map[string]uint16{"4": hostPort + 1, "6": hostPort + 2}[f.name] // hostPort is an older Service's
	at, to := netip.AddrPortFrom(w.endpoints[host].address(f), port), netip.AddrPortFrom(tenantIP(f, 5), 80)
	stop, err := lab.Serve(ctx, w.endpoints[host].place, host, port)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, stop()) }()
	remove, err := w.putAll(ctx, tenantSlice("edge"+f.name, f, podPort, w.endpoints[pod].address(f)), tenantService("edge"+f.name, f, tenantIP(f, 4), at.Port(), at.Addr()))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, remove(), w.answered(ctx, host, host, at)) }()
	// The host's own packets are led by the same map as those that come to it.
	if err := w.answered(ctx, host, pod, at); err != nil {
		return "", err
	}
	// An endpoint of an older Service would not be led anywhere.
	if err := w.tick(ctx); err != nil {
		return "", err
	}
	removeHost, err := w.putAll(ctx, tenantSlice("edge-host"+f.name, f, at.Port(), at.Addr()), tenantService("edge-host"+f.name, f, to.Addr(), to.Port()))
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
