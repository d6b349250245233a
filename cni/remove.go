package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"hairpin/cni/veth"
	"hairpin/ovsdb"
)

// del removes the attachment with a key. A missing attachment is no error.
func (s *Server) del(ctx context.Context, r request, key string) *types.Error {
	for _, a := range s.alloc.attachments(s.ovs.View()) {
		if a.key() != key {
			continue
		}
		if err := s.remove(ctx, a.Host); err != nil {
			return errTryLater("remove sandbox "+r.ContainerID, err)
		}
	}
	sandbox, cniErr := openSandbox(r.Netns)
	if cniErr != nil {
		return nil // the namespace is gone, with everything in it
	}
	defer sandbox.Close()
	if err := veth.UnplugFrom(sandbox, r.IfName); err != nil {
		return errTryLater("remove sandbox "+r.ContainerID, err)
	}
	return nil
}

// remove removes an attachment. A missing attachment is no error.
func (s *Server) remove(ctx context.Context, host string) error {
	s.alloc.markDeleting(host)
	if err := s.unmapHostPorts(ctx, host); err != nil {
		return err
	}
	if err := veth.OnHostEnd(host, eraseRecord); err != nil {
		return err
	}
	if err := s.detach(ctx, host); err != nil {
		return err
	}
	return veth.Unplug(host)
}

// detach removes the port from Open vSwitch.
func (s *Server) detach(ctx context.Context, host string) error {
	s.alloc.markDeleting(host)
	var ops []ovsdb.Op
	for port := range ovsdb.Rows[ovsdb.Port](s.ovs.View()) {
		if port.Name == host {
			ops = append(ops, ovsdb.Mutate("Bridge", ovsdb.DeleteFrom("ports", port.UUID)).All())
		}
	}
	if len(ops) == 0 {
		return nil
	}
	if err := s.transact(ctx, ops...); err != nil {
		return fmt.Errorf("remove port %s: %w", host, err)
	}
	s.changed.Notify()
	return nil
}

// collect removes the network's attachments that the runtime does not list as valid.
func (s *Server) collect(ctx context.Context, r request) *types.Error {
	conf, cniErr := parseConf(r.Config)
	if cniErr != nil {
		return cniErr
	}
	const key = "cni.dev/valid-attachments"
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(r.Config, &keys); err != nil || keys[key] == nil {
		return errInvalidConf("GC without %s would remove everything", key)
	}
	valid := map[string]bool{}
	for _, a := range conf.ValidAttachments {
		valid[attachmentKey(a.ContainerID, a.IfName)] = true
	}
	var failed error
	for _, a := range s.alloc.attachments(s.ovs.View()) {
		// An attachment that is being made is not in the runtime's list yet.
		if valid[a.key()] || a.network != conf.Name || s.alloc.isReserved(a.Host) {
			continue
		}
		s.log.Info("cni: removing an attachment that is no longer valid", "pod", a.pod.String(), "sandbox", a.container)
		release, err := s.lock(ctx, a.key())
		if err == nil {
			err = s.remove(ctx, a.Host)
			release()
		}
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		return errTryLater("collect garbage", failed)
	}
	return nil
}
