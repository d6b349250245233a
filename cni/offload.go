package cni

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"hairpin/cni/veth"
)

// updateOffloads sets the offloads of existing veth pairs to those of new ones: ovs-vswitchd may
// have restarted with userspace-tso-enable, or without. A pair keeps its offloads if its sandbox
// is not found: that is logged once, and not tried again.
func (s *Server) updateOffloads(rows []entry, ends map[string]netlink.Link) error {
	s.mu.Lock()
	options := s.facts.pairs()
	s.mu.Unlock()
	if !options.Userspace {
		return nil
	}
	before := s.offloads
	s.offloads = map[string]veth.Options{}
	var failed error
	var sandboxes map[int]string // their paths, by their id in this namespace; nil: not read yet
	for i := range rows {
		a := &rows[i].attachment
		link := ends[a.Host]
		if link == nil {
			continue
		}
		if before[a.Host] != options {
			if sandboxes == nil {
				var err error
				if sandboxes, err = veth.Namespaces(); err != nil {
					return err
				}
			}
			path, found := sandboxes[link.Attrs().NetNsID]
			if !found {
				s.log.Warn("cni: a pod keeps its offloads: its network namespace is not in "+veth.NamespacesDir, "pod",
					a.pod.String(), "interface", a.Host)
			} else if err := a.SetOffloads(path, link, options); err != nil {
				failed = errors.Join(failed, fmt.Errorf("offloads of %s: %w", a.pod, err))
				continue
			}
		}
		s.offloads[a.Host] = options
	}
	return failed
}
