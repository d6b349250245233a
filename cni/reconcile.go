package cni

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"hairpin/cni/veth"
	"hairpin/ovsdb"
)

// Reconcile reconciles rows and devices. It removes rows without a device, as after a reboot, and
// devices that never had a row, as after an agent was killed: DEL may never be called for them. A
// pod's row that is gone, because the database was lost or the port was removed by hand, is
// restored from the record on the link. An error means that Reconcile could not read the devices;
// NeedsReconcile reports unfinished work.
func (s *Server) Reconcile(ctx context.Context) error {
	s.reconciling.Lock()
	defer s.reconciling.Unlock()
	// Load these first: what changes after the rows are read needs another call.
	wanted, settled := s.reconcilesWanted.Load(), s.ovs.Settled()
	// Read the rows before the devices: an attachment has a device before it has a row.
	rows := s.alloc.attachments(s.ovs.View())
	ends, err := veth.HostEnds()
	if err != nil {
		return err
	}
	var failed error
	for _, a := range rows {
		switch link := ends[a.Host]; {
		case link == nil:
			s.log.Info("cni: removing the port of a pod without an interface", "pod", a.pod.String(), "interface", a.Host)
			failed = errors.Join(failed, s.detach(ctx, a.Host))
		case len(a.Addresses) > 0 && readRecord(link) != a.record():
			failed = errors.Join(failed, s.recordOnLink(&a.attachment))
		}
	}
	for host := range ends {
		if !s.alloc.isKnown(s.ovs.View, host) {
			// restoreOrDelete reads the record again: a DEL removes the record before the row
			failed = errors.Join(failed, veth.OnHostEnd(host, s.restoreOrDelete))
		}
	}
	failed = errors.Join(failed, s.updateOffloads(rows, ends), s.restoreRows(ctx))
	if failed == nil && settled {
		s.reconcilesDone.Store(wanted)
	} else {
		s.reconcilesWanted.Add(1) // work is left, although this call may not have been wanted
	}
	if failed != nil {
		s.log.Warn("cni: reconcile pod interfaces and rows of Open vSwitch", "error", failed)
	}
	return nil
}

// NeedsReconcile reports whether Reconcile has work left.
func (s *Server) NeedsReconcile() bool {
	return s.reconcilesWanted.Load() != s.reconcilesDone.Load() || len(s.alloc.lostRows(s.ovs.View())) > 0
}

// recordOnLink records an attachment on its link, unless a DEL is in progress.
func (s *Server) recordOnLink(a *attachment) error {
	err := veth.OnHostEnd(a.Host, a.writeRecord)
	if !s.alloc.isAttached(s.ovs.View, a.Host) {
		err = veth.OnHostEnd(a.Host, eraseRecord)
	}
	return err
}

// restoreOrDelete handles a device without a row.
func (s *Server) restoreOrDelete(link netlink.Link) error {
	host, record := link.Attrs().Name, readRecord(link)
	a, ok := parseRecord(host, record)
	switch {
	case ok && s.alloc.addLost(s.ovs.View(), &a):
		s.log.Warn("cni: Open vSwitch lost a pod's port: restoring it", "pod", a.pod.String(), "interface", host,
			"addresses", a.Addresses)
		return nil
	case !ok && record != "":
		// The record is of an older version, which recorded less. The attachment cannot be restored
		// without its row, but may be in use.
		s.log.Warn("cni: Open vSwitch lost a pod's port, and its addresses are unknown: delete the pod", "interface",
			host, "alias", record)
		return nil
	}
	if err := netlink.LinkDel(link); err != nil {
		return err
	}
	s.log.Info("cni: removed an interface without an attachment", "interface", host)
	return nil
}

// restoreRows writes the missing rows, if their bridge exists.
func (s *Server) restoreRows(ctx context.Context) error {
	bridge := s.Bridge()
	if ovsdb.BridgeNamed(s.ovs.View(), bridge) == nil {
		return nil
	}
	var failed error
	for _, e := range s.alloc.lostRows(s.ovs.View()) {
		if err := s.transact(ctx, e.insert(bridge)...); err != nil {
			failed = errors.Join(failed, fmt.Errorf("port of %s: %w", e.pod, err))
		}
	}
	s.changed.Notify()
	return failed
}
