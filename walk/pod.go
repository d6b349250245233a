package walk

import (
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/walk/conntrack"
	"hairpin/walk/packet"
)

// startPod finds a pod and sets its packet's source address if it is missing.
func (r *run) startPod(at Point, p *packet.Packet) (location, error) {
	n, err := r.w.node(at.Node)
	if err != nil {
		return location{}, err
	}
	for name, pod := range n.pods {
		if pod.Owner != at.Pod {
			continue
		}
		if !p.Src.IsValid() {
			i := slices.IndexFunc(pod.IPs,
				func(a netip.Addr) bool { return cluster.FamilyOf(a) == cluster.FamilyOf(p.Dst) })
			if i < 0 {
				return location{}, fmt.Errorf("%s has no %s address", at, cluster.FamilyOf(p.Dst))
			}
			p.Src = pod.IPs[i]
		}
		return location{podSends, n, name}, nil
	}
	return location{}, fmt.Errorf("%s is not on node %s", at, at.Node)
}

// podSends handles a packet in the pod's own stack: the pod's subnet is on the link, packets to
// other addresses go to the node switch's router. A packet with a destination MAC keeps it, as one
// that a program of the pod has made.
func (r *run) podSends(n *node, name string) (location, error) {
	pod := n.pods[name]
	if slices.Contains(pod.IPs, r.Dst) {
		return r.deliver(Point{n.name, pod.Owner}, "delivered within the pod")
	}
	if r.Dst.IsLoopback() {
		return r.drop(packet.InPod, fmt.Sprintf("%s is the pod's own loopback: packets to it do not leave the pod, and "+
			"OVN would drop them", r.Dst))
	}
	port, at, by := n.ovn.Port(name), switchReceives, name
	if own, ok := n.podPort(pod); ok && port == nil {
		at, by, port = bridgeReceives, own, n.portToOVN(n.bridgeOf(own))
	}
	if port == nil {
		return r.drop(packet.Other, fmt.Sprintf("pod %s/%s has no logical port %s", pod.Owner.Namespace, pod.Owner.Name, name))
	}
	mac, ok := groupMAC(r.Dst)
	switch {
	case ok && at == switchReceives:
		return location{}, fmt.Errorf("logical switches' multicast groups are not modelled")
	case !ok:
		mac, ok = port.Neighbor(r.Dst)
	}
	if !ok {
		if mac, ok = port.Gateway(r.Src); !ok {
			return r.drop(packet.Other, fmt.Sprintf("switch %s has no router for %s", port.Switch(), r.Src))
		}
	}
	r.EthSrc = pod.MAC
	if r.EthDst == (cluster.MAC{}) {
		r.EthDst = mac
	}
	r.CT = conntrack.State{}
	return location{at, n, by}, nil
}

// podReceives ends a packet at a pod.
func (r *run) podReceives(n *node, pod *cluster.Pod) (location, error) {
	switch {
	case r.EthDst != pod.MAC:
		return r.drop(packet.Other, fmt.Sprintf("the frame is for %s, pod %s/%s has %s", r.EthDst, pod.Owner.Namespace,
			pod.Owner.Name, pod.MAC))
	case !slices.Contains(pod.IPs, r.Dst) && !slices.Contains(pod.Extra, r.Dst):
		return r.drop(packet.Other, fmt.Sprintf("the packet is for %s, which pod %s/%s does not have", r.Dst,
			pod.Owner.Namespace, pod.Owner.Name))
	}
	return r.deliver(Point{n.name, pod.Owner},
		fmt.Sprintf("delivered to pod %s/%s port %d", pod.Owner.Namespace, pod.Owner.Name, r.DstPort))
}
