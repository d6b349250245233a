package cni

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"hairpin/cluster"
)

// netnsDir is the folder in which container runtimes keep the network namespaces of pods.
const netnsDir = "/run/netns"

// Netns returns the path of a pod's network namespace: the one in netnsDir that has the other end
// of the pod's veth pair.
func (s *Server) Netns(pod cluster.Owner) (string, error) {
	for _, e := range s.alloc.attachments(s.ovs.View()) {
		if e.pod != pod {
			continue
		}
		link, err := netlink.LinkByName(e.host)
		if err != nil {
			return "", fmt.Errorf("%s of %s: %w", e.host, pod, err)
		}
		return netnsOf(link.Attrs().NetNsID, pod)
	}
	return "", fmt.Errorf("%s is not on this node", pod)
}

func netnsOf(id int, pod cluster.Owner) (string, error) {
	files, err := os.ReadDir(netnsDir)
	if err != nil {
		return "", fmt.Errorf("network namespace of %s: %w", pod, err)
	}
	for _, f := range files {
		path := filepath.Join(netnsDir, f.Name())
		n, err := ns.GetNS(path)
		if err != nil {
			continue // a leftover name of a former pod
		}
		found, err := netlink.GetNetNsIdByFd(int(n.Fd()))
		_ = n.Close()
		if err == nil && id >= 0 && found == id {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s has no network namespace of id %d for %s", netnsDir, id, pod)
}
