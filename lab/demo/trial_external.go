package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// externalTrials are of an endpoint on a node's host, at an address and port that another Service has as an external address:
// OVN has balanced a pod's packet to it, and the host must not balance it once more.
func externalTrials() []Trial {
	var list []Trial
	for _, f := range families() {
		list = append(list, Trial{Name: "balanced once pod-a2 hostself ClusterIP tcp" + f.name,
			try: func(ctx context.Context, w *world) (string, error) { return w.balancedOnce(ctx, f) }})
	}
	return list
}

func (w *world) balancedOnce(ctx context.Context, f family) (note string, err error) {
	const pod, host = "pod-a1", "host-a"
	at := netip.AddrPortFrom(w.endpoints[host].address(f), hostPort)
	to, err := w.wayTo(way{"pod-a2", "hostself", "ClusterIP"}, f)
	if err != nil {
		return "", err
	}
	remove, err := w.putAll(ctx, tenantSlice("edge", f, podPort, w.endpoints[pod].address(f)), tenantService("edge", f, tenantIP(f, 4), at.Port(), at.Addr()))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, remove(), w.answered(ctx, host, host, at)) }()
	// The host's own packets are led by the same map as those that come to it.
	if err := w.answered(ctx, host, pod, at); err != nil {
		return "", err
	}
	if a := w.asks(ctx, "pod-a2", to); a.Name != host {
		return "", fmt.Errorf("%q answers at %s: %s", a.Name, to, a.Error)
	}
	return "", nil
}
