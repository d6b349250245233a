package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/cni/veth"
	"hairpin/ovsdb"
)

const (
	// installTimeout limits the installation of a pod's flows.
	installTimeout = 30 * time.Second
	// cleanupTimeout limits a transaction that continues without its caller.
	cleanupTimeout = 5 * time.Second
)

// add attaches a sandbox and returns when the pod is reachable. On failure nothing is left behind.
func (s *Server) add(ctx context.Context, r request) (*current.Result, *types.Error) {
	pod, cniErr := parseArgs(r.Args)
	if cniErr != nil {
		return nil, cniErr
	}
	conf, cniErr := parseConf(r.Config)
	if cniErr != nil {
		return nil, cniErr
	}
	facts, cniErr := s.awaitReady(ctx)
	if cniErr != nil {
		return nil, cniErr
	}
	sandbox, cniErr := openSandbox(r.Netns)
	if cniErr != nil {
		return nil, cniErr
	}
	defer sandbox.Close()
	a := attachment{
		pod: cluster.Owner{Kind: "Pod", Namespace: pod.namespace, Name: pod.name}, uid: pod.uid,
		network: conf.Name, container: r.ContainerID, hostPorts: conf.hostPorts(),
		Pair: veth.Pair{Host: veth.NewHostName(), IfName: r.IfName},
	}
	release, err := s.lock(ctx, a.pod.String()) // an ADD of an older sandbox of the pod may be in progress
	if err != nil {
		return nil, errTryLater("another request for "+a.pod.String(), err)
	}
	defer release()
	for _, old := range s.alloc.attachments(s.ovs.View()) {
		switch {
		case old.container == a.container && old.IfName != a.IfName:
			return nil, errInvalidEnv("CNI_IFNAME=%s: %s has %s already, and a pod has one interface", a.IfName, a.pod,
				old.IfName)
		case old.key() == a.key() && old.sameAs(&a, facts.Subnets) && old.Inspect(sandbox) == nil:
			return s.finish(ctx, &old.attachment, sandbox, r.Netns, facts.Bridge) // a repeated ADD gets the same result
		}
	}
	return s.attachNew(ctx, &a, sandbox, r.Netns, facts)
}

// sameAs reports whether an attachment is what an ADD requests, whatever its addresses are.
func (a *attachment) sameAs(b *attachment, subnets []netip.Prefix) bool {
	return a.pod == b.pod && a.uid == b.uid && a.network == b.network && a.checkSubnets(subnets) == nil &&
		len(a.Addresses) == len(subnets)
}

// checkSubnets returns an error if an address is in none of the node's subnets.
func (a *attachment) checkSubnets(subnets []netip.Prefix) error {
	for _, p := range a.Addresses {
		if !slices.Contains(subnets, p.Masked()) {
			return fmt.Errorf("spec.podCIDRs: %v: %s has the address %s", subnets, a.pod, p)
		}
	}
	return nil
}

// attachNew makes an attachment and removes others of the same pod or sandbox: OVN binds a logical
// port to one interface only.
func (s *Server) attachNew(ctx context.Context, a *attachment, sandbox ns.NetNS, netns string,
	f Facts) (*current.Result, *types.Error) {
	for _, old := range s.alloc.attachments(s.ovs.View()) {
		if old.pod == a.pod || old.key() == a.key() {
			if err := s.remove(ctx, old.Host); err != nil {
				return nil, errTryLater("remove an older sandbox of "+a.pod.String(), err)
			}
		}
	}
	if err := veth.UnplugFrom(sandbox, a.IfName); err != nil {
		return nil, errTryLater("remove what is in the sandbox of "+a.pod.String(), err)
	}
	err := s.alloc.reserve(s.ovs.View(), a, f.Subnets, f.Reported)
	if errors.Is(err, errFull) {
		if failed := s.Reconcile(ctx); failed != nil {
			s.log.Warn("cni: find unused addresses", "error", failed)
		}
		err = s.alloc.reserve(s.ovs.View(), a, f.Subnets, f.Reported)
	}
	if err != nil {
		return nil, errTryLater("address of "+a.pod.String(), err)
	}
	s.changed.Notify() // the pod can be planned while its interface is being made
	result, cniErr := s.attach(ctx, a, sandbox, netns, f)
	if cniErr != nil {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		if err := s.remove(cleanup, a.Host); err != nil {
			s.log.Warn("cni: clean up after a failed ADD", "pod", a.pod.String(), "error", err)
		}
	}
	s.alloc.unreserve(a.Host)
	if cniErr != nil {
		s.changed.Notify()
	}
	return result, cniErr
}

// attach makes the pod's interface, its rows and its record, and finishes the ADD.
func (s *Server) attach(ctx context.Context, a *attachment, sandbox ns.NetNS, netns string,
	f Facts) (*current.Result, *types.Error) {
	if ovsdb.BridgeNamed(s.ovs.View(), f.Bridge) == nil {
		return nil, errTryLater("port of "+a.pod.String(), fmt.Errorf("Open vSwitch has no bridge %q", f.Bridge))
	}
	if err := a.Plug(sandbox, f.pairs()); err != nil {
		return nil, errInternal("interface of "+a.pod.String(), err)
	}
	// The transaction continues when the caller is gone: the clean-up removes the row that it finds
	// in the View, so it must not run before the row is there.
	inserting, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := s.transact(inserting, append(a.insert(f.Bridge), s.alloc.saveLast()...)...); err != nil {
		s.reconcilesWanted.Add(1) // the transaction may still succeed
		return nil, errTryLater("port of "+a.pod.String(), err)
	}
	if err := veth.OnHostEnd(a.Host, a.writeRecord); err != nil {
		s.log.Warn("cni: cannot record the attachment on its link: a lost row cannot be restored", "pod",
			a.pod.String(), "error", err)
	}
	return s.finish(ctx, a, sandbox, netns, f.Bridge)
}

// finish waits until the pod is reachable, sets its interface up, and returns the result of ADD.
func (s *Server) finish(ctx context.Context, a *attachment, sandbox ns.NetNS, netns,
	bridge string) (*current.Result, *types.Error) {
	waiting, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	var why error
	err := s.ovs.WaitFor(waiting, func(v ovsdb.View) bool {
		why = s.portError(v, a, bridge)
		return why == nil
	})
	if err != nil {
		err = fmt.Errorf("%w: %w", why, err)
	} else if bridge == claims.ServiceBridge {
		err = s.awaitReached(waiting, a.Host)
	}
	if err != nil {
		return nil, errTryLater("flows of "+a.pod.String(), err)
	}
	if err := s.deleteMegaflows(waiting, a.Host, a.toPod(s.node).IPs); err != nil {
		return nil, errTryLater("megaflows of an earlier port of "+a.pod.String(), err)
	}
	if err := sandbox.Do(func(ns.NetNS) error { return a.Activate() }); err != nil {
		return nil, errInternal("interface of "+a.pod.String(), err)
	}
	host, err := netlink.LinkByName(a.Host)
	if err != nil {
		return nil, errInternal("interface of "+a.pod.String(), err)
	}
	return a.result(netns, host), nil
}

// portError returns why the attachment's port is not ready; nil if it is.
func (s *Server) portError(v ovsdb.View, a *attachment, bridge string) error {
	if row := interfaceNamed(v, a.Host); row != nil {
		return a.portError(row, bridge)
	}
	return fmt.Errorf("Open vSwitch has no port %s of sandbox %s", a.Host, a.container)
}

// result returns the result of ADD: https://www.cni.dev/docs/spec/, section 5.
func (a *attachment) result(netns string, host netlink.Link) *current.Result {
	sandboxEnd := 1 // index in Interfaces
	r := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: a.Host, Mac: host.Attrs().HardwareAddr.String(), Mtu: host.Attrs().MTU},
			{Name: a.IfName, Mac: a.MAC.String(), Mtu: host.Attrs().MTU, Sandbox: netns},
		},
	}
	gateways := a.Gateways()
	for i, p := range a.Addresses {
		gw := net.IP(gateways[i].AsSlice())
		r.IPs = append(r.IPs, &current.IPConfig{Interface: &sandboxEnd, Address: *veth.IPNet(p), Gateway: gw})
		r.Routes = append(r.Routes, &types.Route{Dst: *veth.IPNet(veth.DefaultRoute(gateways[i])), GW: gw})
	}
	return r
}
