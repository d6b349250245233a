package cni

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"hairpin/claims"
	"hairpin/ovsdb"
)

// Sweep makes rows and devices equal, after whatever happened to one of them. It removes rows whose device is gone, as after a reboot,
// and devices that never had a row, as after an agent that was killed: nobody may ever ask for their removal. Where a pod's row is gone,
// its database was lost, or somebody removed the port: the row is made again of what stands on the link, as long as that is there.
// The error says that it could not look; of what it could not do, Unswept tells.
func (s *Server) Sweep(ctx context.Context) error {
	s.sweeping.Lock()
	defer s.sweeping.Unlock()
	// The rows before the devices: an attachment has a device before it has a row.
	rows := s.book.attachments(s.ovs.View())
	ends, err := hostEnds()
	if err != nil {
		return err
	}
	var failed error
	for _, a := range rows {
		switch link := ends[a.host]; {
		case link == nil:
			s.log.Info("cni: the interface of a pod is gone", "pod", a.pod.String(), "interface", a.host)
			failed = errors.Join(failed, s.detach(ctx, a.host))
		case len(a.addresses) > 0 && readRecord(link) != a.record():
			failed = errors.Join(failed, s.mark(&a.attachment))
		}
	}
	for host := range ends {
		if !s.book.has(s.ovs.View, host) {
			failed = errors.Join(failed, onHostEnd(host, s.orphan)) // read again: a DEL takes the record off before the row
		}
	}
	failed = errors.Join(failed, s.remake(ctx))
	s.unfinished.Store(failed != nil || !s.ovs.Settled())
	if failed != nil {
		s.log.Warn("cni: interfaces of pods and rows of Open vSwitch differ", "error", failed)
	}
	return nil
}

// Unswept tells that Sweep has something to do.
func (s *Server) Unswept() bool {
	return s.unfinished.Load() || len(s.book.withoutRow(s.ovs.View())) > 0
}

// mark writes an attachment that has a row on its link, unless a DEL is under way.
func (s *Server) mark(a *attachment) error {
	err := onHostEnd(a.host, a.write)
	if !s.book.stays(s.ovs.View, a.host) {
		err = onHostEnd(a.host, eraseRecord)
	}
	return err
}

// orphan decides about a device without a row.
func (s *Server) orphan(link netlink.Link) error {
	host, record := link.Attrs().Name, readRecord(link)
	a, ok := parseRecord(host, record)
	switch {
	case ok && s.book.restore(s.ovs.View(), &a):
		s.log.Warn("cni: Open vSwitch has lost the port of a pod: it is made again", "pod", a.pod.String(), "interface", host, "addresses", a.addresses)
		return nil
	case !ok && record != "":
		// Of an older version, which wrote less: without its row it cannot be made again, but nothing says that nobody needs it.
		s.log.Warn("cni: Open vSwitch has lost the port of a pod, whose addresses are not known: delete the pod", "interface", host, "alias", record)
		return nil
	}
	s.log.Info("cni: an interface is nobody's", "interface", host)
	return netlink.LinkDel(link)
}

// remake writes the rows that are missing. Without an integration bridge they wait for it.
func (s *Server) remake(ctx context.Context) error {
	bridge := false
	for b := range ovsdb.Rows[ovsdb.Bridge](s.ovs.View()) {
		bridge = bridge || b.Name == claims.IntegrationBridge
	}
	if !bridge {
		return nil
	}
	var failed error
	for _, e := range s.book.withoutRow(s.ovs.View()) {
		if _, err := s.ovs.Transact(ctx, e.insert()...); err != nil {
			failed = errors.Join(failed, fmt.Errorf("port of %s: %w", e.pod, err))
		}
	}
	s.notify()
	return failed
}
