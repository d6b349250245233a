package cni

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"hairpin/cni/veth"
	"hairpin/ovsdb"
)

// Pods' ports are on OVN's bridge, or on claims.ServiceBridge, where the agent writes the flows.
// OVN reports when a pod on its bridge is reachable; the agent reports it for the other.

// errNotReported is the error of a pod on claims.ServiceBridge that is not in the map of Reached.
var errNotReported = errors.New("it is not known yet whether the pod's flows are written, and whether OVN's lead to it")

// ErrUnread is the error for a pod without known labels: its policies are not known either.
var ErrUnread = errors.New("the agent has not read its Pod and the policies before it from the Kubernetes API")

// Reached sets what is known of the pods on claims.ServiceBridge, by the UUIDs of their ports'
// Interface rows. A nil error: the pod is reachable, because its flows are written and OVN's flows
// lead to it. Another error: why it is not reachable. No entry: not known yet. The map must not be
// changed afterwards.
func (s *Server) Reached(rows map[string]error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if maps.Equal(s.reached, rows) {
		return
	}
	s.reached = rows
	s.reachedChanged.Notify()
}

// reachError returns nil if the pod with an Interface row is reachable, and otherwise the reason.
func (s *Server) reachError(row string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why, known := s.reached[row]; known {
		return why
	}
	return errNotReported
}

// awaitReached waits until Reached reports a port as reachable, by the row that the port has now.
func (s *Server) awaitReached(ctx context.Context, port string) error {
	for {
		next := s.reachedChanged.Next()
		why := errNotReported
		if row := interfaceNamed(s.ovs.View(), port); row != nil {
			why = s.reachError(string(row.UUID))
		}
		if why == nil {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", why, ctx.Err())
		}
	}
}

// Bridge returns the bridge that pods' ports must be on; empty: not known yet.
func (s *Server) Bridge() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.facts.Bridge
}

// interfaceNamed returns the Interface row with a name, nil if there is none.
func interfaceNamed(v ovsdb.View, name string) *ovsdb.Interface {
	return ovsdb.Find(v, func(i *ovsdb.Interface) bool { return i.Name == name })
}

// misplacedPort is a pod's port on another bridge than Bridge.
type misplacedPort struct {
	on   *ovsdb.Bridge
	port *ovsdb.Port
}

// misplacedPorts lists pods' ports on a wrong bridge.
func (s *Server) misplacedPorts(v ovsdb.View) (list []misplacedPort) {
	to := s.Bridge()
	for b := range ovsdb.Rows[ovsdb.Bridge](v) {
		if b.Name == to || to == "" {
			continue
		}
		for _, id := range b.Ports {
			if p := ovsdb.Get[ovsdb.Port](v, id); p != nil && veth.IsHostName(p.Name) {
				list = append(list, misplacedPort{b, p})
			}
		}
	}
	return list
}

// Misplaced reports whether pods' ports are on a wrong bridge, for example after a change of the
// service engine.
func (s *Server) Misplaced() bool { return len(s.misplacedPorts(s.ovs.View())) > 0 }

// Move moves misplaced ports in one transaction. Each port keeps its rows, and gets another port
// number.
func (s *Server) Move(ctx context.Context) error {
	v := s.ovs.View()
	to := ovsdb.BridgeNamed(v, s.Bridge())
	list := s.misplacedPorts(v)
	switch {
	case len(list) == 0:
		return nil
	case to == nil:
		return fmt.Errorf("move pods' ports: Open vSwitch has no bridge %s", s.Bridge())
	}
	var ops []ovsdb.Op
	for _, x := range list {
		ops = append(ops, ovsdb.Mutate("Bridge", ovsdb.DeleteFrom("ports", x.port.UUID)).Row(x.on.UUID),
			ovsdb.Mutate("Bridge", ovsdb.InsertInto("ports", x.port.UUID)).Row(to.UUID))
		for _, id := range x.port.Interfaces {
			// ofport and ovn-installed apply to the former bridge.
			ops = append(ops, ovsdb.Update(ovsdb.Interface{UUID: id}, "ofport"),
				ovsdb.Mutate("Interface",
					ovsdb.DeleteFrom("external_ids", []string{keyInstalled, keyInstalledAt})).Row(id))
		}
	}
	if err := s.transact(ctx, ops...); err != nil {
		return fmt.Errorf("move pods' ports to %s: %w", to.Name, err)
	}
	s.log.Info("cni: moved pods' ports", "bridge", to.Name, "ports", len(list))
	return nil
}

// WaitOpened waits until ovs-vswitchd has opened all pods' ports: they have OpenFlow port numbers.
func (s *Server) WaitOpened(ctx context.Context) error {
	return s.ovs.WaitFor(ctx, func(v ovsdb.View) bool {
		for i := range ovsdb.Rows[ovsdb.Interface](v) {
			if veth.IsHostName(i.Name) && i.OFPort == nil {
				return false
			}
		}
		return true
	})
}
