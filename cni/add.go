package cni

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/ovsdb"
)

// install is how long OVN may take to install a pod's flows.
const install = 30 * time.Second

// add attaches a sandbox and returns when the pod is reachable. On failure nothing is left behind.
func (s *Server) add(ctx context.Context, r request, host string) (*current.Result, *types.Error) {
	pod, cniErr := parseArgs(r.Args)
	if cniErr != nil {
		return nil, cniErr
	}
	if cniErr := s.status(); cniErr != nil {
		return nil, cniErr
	}
	owner := cluster.Owner{Kind: "Pod", Namespace: pod.namespace, Name: pod.name}
	if a, ok := s.find(host); ok && a.pod == owner && inspect(&a, r.Netns, gatewaysOf(a.addresses)) == nil {
		return s.finish(ctx, &a, r.Netns) // asked again: the same answer
	}
	if err := s.replace(ctx, owner, host); err != nil {
		return nil, errTryLater("remove an older sandbox of "+owner.String(), err)
	}
	a := attachment{pod: owner, uid: pod.uid, sandbox: r.ContainerID, ifName: r.IfName, host: host}
	w, err := s.reserve(&a)
	if err != nil {
		return nil, errTryLater("addresses", err)
	}
	result, cniErr := s.attach(ctx, &a, r.Netns, w)
	if cniErr != nil {
		// The caller may be gone, the clean-up must happen all the same.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := s.remove(clean, host); err != nil {
			s.log.Warn("cni: clean up after a failed ADD", "pod", owner.String(), "error", err)
		}
	}
	s.release(&a)
	return result, cniErr
}

// replace removes older attachments of the pod, and what a crashed ADD left of this one: OVN binds a logical port to
// one interface only.
func (s *Server) replace(ctx context.Context, pod cluster.Owner, host string) error {
	for _, a := range attachments(s.ovs.View()) {
		if a.pod == pod || a.host == host {
			if err := s.remove(ctx, a.host); err != nil {
				return err
			}
		}
	}
	return nil
}

// reserve gives the attachment one address of each of the node's subnets. They count as taken from now on, and plan
// learns of the pod at once, while its interface is still being made.
func (s *Server) reserve(a *attachment) (wiring, error) {
	used := map[netip.Addr]bool{}
	take := func(x attachment) {
		for _, p := range x.addresses {
			used[p.Addr()] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.pending {
		take(x)
	}
	for _, x := range attachments(s.ovs.View()) {
		take(x)
	}
	for _, subnet := range s.facts.Subnets {
		family := cluster.FamilyOf(subnet.Addr())
		ip, err := nextAddress(subnet, s.last[family], used)
		if err != nil {
			return wiring{}, err
		}
		s.last[family] = ip
		a.addresses = append(a.addresses, netip.PrefixFrom(ip, subnet.Bits()))
	}
	a.mac = cluster.MACFor(a.addresses[0].Addr())
	s.pending[a.host] = *a
	s.notify()
	return wiring{mtu: s.facts.MTU, gateways: gatewaysOf(a.addresses), userspace: s.facts.Userspace}, nil
}

// release ends the reservation: what was attached is on its Interface row now.
func (s *Server) release(a *attachment) {
	s.mu.Lock()
	delete(s.pending, a.host)
	s.mu.Unlock()
	s.notify()
}

func (s *Server) attach(ctx context.Context, a *attachment, netns string, w wiring) (*current.Result, *types.Error) {
	if err := plug(a, netns, w); err != nil {
		return nil, errInternal("interface of the pod", err)
	}
	if _, err := s.ovs.Transact(ctx, a.insert(claims.IntegrationBridge)...); err != nil {
		return nil, errTryLater("port on "+claims.IntegrationBridge, err)
	}
	return s.finish(ctx, a, netns)
}

// finish waits until OVN has the pod, and tells the runtime what it got.
func (s *Server) finish(ctx context.Context, a *attachment, netns string) (*current.Result, *types.Error) {
	ctx, cancel := context.WithTimeout(ctx, install)
	defer cancel()
	var state attachment
	err := s.ovs.WaitFor(ctx, func(v ovsdb.View) bool {
		for row := range ovsdb.Rows[ovsdb.Interface](v) {
			if row.Name == a.host {
				state, _ = parseAttachment(row)
			}
		}
		return state.installed
	})
	if err != nil {
		return nil, errTryLater("flows of the pod", fmt.Errorf("OVN has not installed them (ofport %d): %w", state.ofport, err))
	}
	one := 1
	result := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{{Name: a.host}, {Name: a.ifName, Mac: a.mac.String(), Sandbox: netns}},
	}
	for i, p := range a.addresses {
		gw := net.IP(gatewaysOf(a.addresses)[i].AsSlice())
		result.IPs = append(result.IPs, &current.IPConfig{Interface: &one, Address: *ipNet(p), Gateway: gw})
		result.Routes = append(result.Routes, &types.Route{Dst: *ipNet(netip.PrefixFrom(zero(p.Addr()), 0)), GW: gw})
	}
	return result, nil
}
