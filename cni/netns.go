package cni

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"hairpin/cluster"
	"hairpin/cni/veth"
)

// Netns returns the path of a pod's network namespace: the one in veth.NamespacesDir that has the
// other end of the pod's veth pair.
func (s *Server) Netns(pod cluster.Owner) (string, error) {
	for _, e := range s.alloc.attachments(s.ovs.View()) {
		if e.pod != pod {
			continue
		}
		link, err := netlink.LinkByName(e.Host)
		if err != nil {
			return "", fmt.Errorf("%s of %s: %w", e.Host, pod, err)
		}
		found, err := veth.Namespaces()
		if err != nil {
			return "", fmt.Errorf("network namespace of %s: %w", pod, err)
		}
		if path, ok := found[link.Attrs().NetNsID]; ok {
			return path, nil
		}
		return "", fmt.Errorf("%s has no network namespace of id %d for %s", veth.NamespacesDir, link.Attrs().NetNsID, pod)
	}
	return "", fmt.Errorf("%s is not on this node", pod)
}
