package cni

import (
	"errors"
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
		found, err := findNamespaces()
		if err != nil {
			return "", fmt.Errorf("network namespace of %s: %w", pod, err)
		}
		if path, ok := found[link.Attrs().NetNsID]; ok {
			return path, nil
		}
		return "", fmt.Errorf("%s has no network namespace of id %d for %s", netnsDir, link.Attrs().NetNsID, pod)
	}
	return "", fmt.Errorf("%s is not on this node", pod)
}

// findNamespaces returns the paths of the network namespaces in netnsDir, by their id in this one.
func findNamespaces() (map[int]string, error) {
	entries, err := os.ReadDir(netnsDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	found := map[int]string{}
	for _, e := range entries {
		path := filepath.Join(netnsDir, e.Name())
		sandbox, err := ns.GetNS(path)
		if err != nil {
			continue // it is gone, or something else
		}
		if id, err := netlink.GetNetNsIdByFd(int(sandbox.Fd())); err == nil && id >= 0 {
			found[id] = path
		}
		_ = sandbox.Close()
	}
	return found, nil
}
