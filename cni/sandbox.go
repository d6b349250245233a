package cni

import (
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/cluster"
	"hairpin/cni/veth"
)

// openSandbox opens the network namespace of a sandbox. It must not be the node's own.
func openSandbox(path string) (ns.NetNS, *types.Error) {
	own, err := ns.GetCurrentNS()
	if err != nil {
		return nil, errInternal("the node's network namespace", err)
	}
	defer own.Close()
	sandbox, err := ns.GetNS(path)
	if err != nil {
		return nil, errInvalidEnv("CNI_NETNS: %v", err)
	}
	var a, b unix.Stat_t
	if err := errors.Join(unix.Fstat(int(own.Fd()), &a), unix.Fstat(int(sandbox.Fd()), &b)); err != nil {
		return nil, errInternal("CNI_NETNS "+path, errors.Join(err, sandbox.Close()))
	}
	if a.Dev == b.Dev && a.Ino == b.Ino {
		_ = sandbox.Close()
		return nil, types.NewError(types.ErrInvalidNetNS, "CNI_NETNS "+path+" is the node's own network namespace", "")
	}
	return sandbox, nil
}

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
