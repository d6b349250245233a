package cni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/ns"

	"hairpin/claims"
	"hairpin/ovsdb"
)

// check compares the rows, devices and ADD result of an attachment with its desired state. An agent
// that has just started does not know all of it: check waits for the rest, and returns
// ErrTryAgainLater if that takes longer than readyTimeout. It returns a known fault at once.
func (s *Server) check(ctx context.Context, r request, key string) *types.Error {
	conf, cniErr := parseConf(r.Config)
	if cniErr != nil {
		return cniErr
	}
	sandbox, cniErr := openSandbox(r.Netns)
	if cniErr != nil {
		return cniErr
	}
	defer sandbox.Close()
	waiting, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		nextFacts, nextReached := s.factsChanged.Next(), s.reachedChanged.Next()
		cniErr := s.compare(conf, sandbox, r.ContainerID, key)
		if cniErr == nil || cniErr.Code != types.ErrTryAgainLater {
			return cniErr
		}
		select {
		case <-nextFacts:
		case <-nextReached:
		case <-waiting.Done():
			return cniErr
		}
	}
}

// compare compares once: it returns ErrTryAgainLater if the agent does not know the desired state
// yet.
func (s *Server) compare(conf netConf, sandbox ns.NetNS, container, key string) *types.Error {
	s.mu.Lock()
	facts, notReady, wasReady := s.facts, s.notReady, s.wasReady
	s.mu.Unlock()
	a, row := s.find(key)
	if row != nil { // no facts are needed for its devices and its ADD result
		if err := a.Inspect(sandbox); err != nil {
			return errDiffers(err)
		}
		if cniErr := a.compareResult(conf); cniErr != nil {
			return cniErr
		}
	}
	switch {
	case !wasReady || len(facts.Subnets) == 0:
		return errUnknown(errors.New(cmp.Or(notReady, s.noSubnets())))
	case row == nil:
		return errDiffers(fmt.Errorf("Open vSwitch has no port of sandbox %s", container))
	}
	if err := a.checkSubnets(facts.Subnets); err != nil {
		return errDiffers(fmt.Errorf("Node/%s: %w", s.node, err))
	}
	if err := a.portError(row, facts.Bridge); err != nil {
		return errDiffers(err)
	}
	if facts.Bridge == claims.ServiceBridge {
		if why := s.reachError(a.rowUUID); why != nil {
			return errUnknown(fmt.Errorf("%s: %w", a.Host, why))
		}
	}
	return nil
}

func errUnknown(err error) *types.Error {
	return errTryLater("it is not known yet whether the pod's network is as it was made", err)
}

func errDiffers(err error) *types.Error {
	return types.NewError(codeDiffers, "the pod's network is not as it was made", err.Error())
}

// find returns the attachment with a key, and its row; nil if it has none.
func (s *Server) find(key string) (attachment, *ovsdb.Interface) {
	for _, e := range s.alloc.attachments(s.ovs.View()) {
		if e.key() == key {
			return e.attachment, e.row
		}
	}
	return attachment{}, nil
}

// compareResult compares the attachment's addresses with those in prevResult, the result of ADD,
// which the runtime must pass to CHECK.
func (a *attachment) compareResult(conf netConf) *types.Error {
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
			return errDiffers(fmt.Errorf("%s has the address %s, ADD returned %v", a.pod, p, returned))
		}
	}
	return nil
}
