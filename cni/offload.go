package cni

import (
	"errors"
	"fmt"
	"os"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

// offload sets the offloads of existing veth pairs to those of new ones: ovs-vswitchd may have
// restarted with userspace-tso-enable, or without. A pair whose sandbox is not found keeps its
// offloads.
func (s *Server) offload(rows []entry, ends map[string]netlink.Link) error {
	s.mu.Lock()
	w := s.facts.wiring()
	s.mu.Unlock()
	if !w.userspace {
		return nil
	}
	before := s.offloads
	s.offloads = map[string]wiring{}
	var failed error
	sandboxes := map[int]string{} // by their id in this namespace
	for i := range rows {
		a := &rows[i].attachment
		link := ends[a.host]
		if link == nil {
			continue
		}
		if before[a.host] != w {
			if len(sandboxes) == 0 {
				var err error
				if sandboxes, err = findNamespaces(); err != nil {
					return err
				}
			}
			path, found := sandboxes[link.Attrs().NetNsID]
			if !found {
				s.log.Warn("cni: a pod keeps its offloads: its network namespace is not in "+netnsDir, "pod",
					a.pod.String(), "interface", a.host)
			} else if err := a.offload(path, link, w); err != nil {
				failed = errors.Join(failed, fmt.Errorf("offloads of %s: %w", a.pod, err))
				continue
			}
		}
		s.offloads[a.host] = w
	}
	return failed
}

// offload sets the offloads of both ends. A missing end is no error.
func (a *attachment) offload(path string, host netlink.Link, w wiring) error {
	sandbox, err := ns.GetNS(path)
	if errors.Is(err, os.ErrNotExist) || errors.As(err, new(ns.NSPathNotExistErr)) {
		return nil
	}
	if err != nil {
		return err
	}
	defer sandbox.Close()
	err = sandbox.Do(func(ns.NetNS) error {
		link, err := netlink.LinkByName(a.ifName)
		if errors.As(err, new(netlink.LinkNotFoundError)) || err == nil &&
			link.Attrs().ParentIndex != host.Attrs().Index {
			return nil
		}
		if err != nil {
			return err
		}
		return w.offload(a.ifName)
	})
	if err != nil {
		return err
	}
	return onHostEnd(a.host, func(netlink.Link) error { return w.offload(a.host) })
}
