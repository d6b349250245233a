package cni

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"hairpin/claims"
	"hairpin/ovsdb"
)

// check compares the rows, devices and ADD result of an attachment with its desired state.
func (s *Server) check(r request, key string) *types.Error {
	conf, cniErr := parseConf(r.Config)
	if cniErr != nil {
		return cniErr
	}
	sandbox, cniErr := openSandbox(r.Netns)
	if cniErr != nil {
		return cniErr
	}
	defer sandbox.Close()
	a, row := s.find(key)
	if row == nil {
		return damaged(fmt.Errorf("Open vSwitch has no port of sandbox %s", r.ContainerID))
	}
	s.mu.Lock()
	facts, ready := s.facts, s.notReady == ""
	s.mu.Unlock()
	if err := a.checkSubnets(facts.Subnets); err != nil {
		return damaged(fmt.Errorf("Node/%s: %w", s.node, err))
	}
	if err := a.bound(row, facts.Bridge); err != nil {
		return damaged(err)
	}
	if facts.Bridge == claims.ServiceBridge && ready {
		if why := s.notReached(a.row); why != nil {
			return damaged(fmt.Errorf("%s: %w", a.Host, why))
		}
	}
	if err := a.Inspect(sandbox); err != nil {
		return damaged(err)
	}
	return a.compare(conf)
}

func damaged(err error) *types.Error {
	return types.NewError(errDamaged, "the pod's network is not as it was made", err.Error())
}

func (s *Server) find(key string) (attachment, *ovsdb.Interface) {
	for _, e := range s.alloc.attachments(s.ovs.View()) {
		if e.key() == key {
			return e.attachment, e.row
		}
	}
	return attachment{}, nil
}

// compare compares the attachment's addresses with those in prevResult, the result of ADD, which
// the runtime must pass to CHECK.
func (a *attachment) compare(conf netConf) *types.Error {
	if conf.RawPrevResult == nil {
		return errInvalidConf("CHECK without prevResult")
	}
	if err := version.ParsePrevResult(&conf.PluginConf); err != nil {
		return types.NewError(types.ErrDecodingFailure, "prevResult", err.Error())
	}
	result, err := current.NewResultFromResult(conf.PrevResult)
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, "prevResult", err.Error())
	}
	var returned []netip.Prefix
	for _, ip := range result.IPs {
		if p, err := netip.ParsePrefix(ip.Address.String()); err == nil {
			returned = append(returned, p)
		}
	}
	for _, p := range a.Addresses {
		if !slices.Contains(returned, p) {
			return damaged(fmt.Errorf("%s has the address %s, ADD returned %v", a.pod, p, returned))
		}
	}
	return nil
}
