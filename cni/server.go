package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/ovsdb"
)

// Facts is what the agent knows of its node, as far as pods need it.
type Facts struct {
	Subnets   []netip.Prefix // the node's pod CIDRs, IPv4 first; none: not known yet
	MTU       int            // bytes
	Userspace bool           // Open vSwitch runs the userspace datapath
}

// Server is the agent's half of the plugin. It must be made by NewServer.
type Server struct {
	ovs     *ovsdb.Client // mirrors Interface, Port, Bridge of Open_vSwitch
	node    string
	log     *slog.Logger
	changed chan struct{}

	mu      sync.Mutex
	facts   Facts
	ready   string                        // why pods cannot be served; empty = they can
	pending map[string]attachment         // being added, by host name: their addresses are taken
	last    map[cluster.Family]netip.Addr // given most recently
	busy    map[string]chan struct{}      // host names that a request works on
}

// NewServer gives a Server that is not ready: see SetFacts.
func NewServer(ovs *ovsdb.Client, node string, log *slog.Logger) *Server {
	return &Server{
		ovs: ovs, node: node, log: log, changed: make(chan struct{}, 1), ready: "the cluster is not known yet",
		pending: map[string]attachment{}, last: map[cluster.Family]netip.Addr{}, busy: map[string]chan struct{}{},
	}
}

// SetFacts tells what the node is, and why it cannot serve pods now (empty: it can).
func (s *Server) SetFacts(f Facts, notReady string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.facts, s.ready = f, notReady
}

// Changed tells, coalesced, that Pods has something new.
func (s *Server) Changed() <-chan struct{} { return s.changed }

func (s *Server) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Pods gives the pods of this node that have an interface, or are about to get one.
func (s *Server) Pods() []*cluster.Pod {
	var list []*cluster.Pod
	s.mu.Lock()
	for _, a := range s.pending {
		list = append(list, a.toPod(s.node))
	}
	s.mu.Unlock()
	for _, a := range attachments(s.ovs.View()) {
		if !slices.ContainsFunc(list, func(p *cluster.Pod) bool { return p.Owner == a.pod }) {
			list = append(list, a.toPod(s.node))
		}
	}
	slices.SortFunc(list, func(a, b *cluster.Pod) int { return a.Owner.Compare(b.Owner) })
	return list
}

// Sweep removes attachments whose device is gone, as after a reboot: nobody may ever ask for their removal.
func (s *Server) Sweep(ctx context.Context) error {
	for _, a := range attachments(s.ovs.View()) {
		if !plugged(a.host) {
			s.log.Info("pod interface is gone", "pod", a.pod.String(), "interface", a.host)
			if err := s.detach(ctx, a.host); err != nil {
				return err
			}
		}
	}
	return nil
}

// ServeHTTP answers the plugin.
func (s *Server) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var r request
	if err := json.NewDecoder(q.Body).Decode(&r); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	result, cniErr := s.do(q.Context(), r)
	answer := reply{Error: cniErr}
	if result != nil && cniErr == nil {
		text, err := json.Marshal(result)
		if err != nil {
			answer.Error = errInternal("result", err)
		}
		answer.Result = text
	}
	if answer.Error != nil {
		s.log.Warn("cni", "command", r.Command, "args", r.Args, "sandbox", r.ContainerID, "error", answer.Error.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		s.log.Debug("cni: the plugin went away", "error", err)
	}
}

func (s *Server) do(ctx context.Context, r request) (*current.Result, *types.Error) {
	switch r.Command {
	case cmdStatus:
		return nil, s.status()
	case cmdGC:
		return nil, s.collect(ctx, r)
	}
	host := hostName(r.ContainerID, r.IfName)
	release, err := s.hold(ctx, host)
	if err != nil {
		return nil, errTryLater("another request for this sandbox", err)
	}
	defer release()
	switch r.Command {
	case cmdAdd:
		return s.add(ctx, r, host)
	case cmdDel:
		if err := s.remove(ctx, host); err != nil {
			return nil, errTryLater("remove "+host, err)
		}
		return nil, nil
	case cmdCheck:
		return nil, s.check(r, host)
	}
	return nil, errInvalidEnv("CNI_COMMAND %q is not known", r.Command)
}

// hold makes requests for the same sandbox wait for each other.
func (s *Server) hold(ctx context.Context, host string) (func(), error) {
	for {
		s.mu.Lock()
		other, taken := s.busy[host]
		if !taken {
			done := make(chan struct{})
			s.busy[host] = done
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.busy, host)
				s.mu.Unlock()
				close(done)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *Server) status() *types.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ready != "":
		return errNotReady(s.ready)
	case len(s.facts.Subnets) == 0:
		return errNotReady("Node " + s.node + ": spec.podCIDRs: is empty")
	case !s.ovs.Connected():
		return errNotReady("no connection to Open vSwitch")
	}
	return nil
}

func (s *Server) check(r request, host string) *types.Error {
	a, ok := s.find(host)
	if !ok {
		return errInternal("check", fmt.Errorf("Open vSwitch has no port %s for sandbox %s", host, r.ContainerID))
	}
	if !a.installed {
		return errInternal("check", fmt.Errorf("OVN has not installed the flows of %s", host))
	}
	if err := inspect(&a, r.Netns, gatewaysOf(a.addresses)); err != nil {
		return errInternal("check", err)
	}
	return nil
}

func (s *Server) find(host string) (attachment, bool) {
	for _, a := range attachments(s.ovs.View()) {
		if a.host == host {
			return a, true
		}
	}
	return attachment{}, false
}

// collect removes what the runtime does not name as valid.
func (s *Server) collect(ctx context.Context, r request) *types.Error {
	var conf netConf
	if err := json.Unmarshal(r.Config, &conf); err != nil {
		return types.NewError(types.ErrDecodingFailure, "network configuration", err.Error())
	}
	valid := map[string]bool{}
	for _, a := range conf.ValidAttachments {
		valid[hostName(a.ContainerID, a.IfName)] = true
	}
	var failed error
	for _, a := range attachments(s.ovs.View()) {
		if valid[a.host] {
			continue
		}
		release, err := s.hold(ctx, a.host)
		if err == nil {
			err = s.remove(ctx, a.host)
			release()
		}
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		return errTryLater("collect garbage", failed)
	}
	return nil
}

// remove takes an attachment away; one that is gone is fine.
func (s *Server) remove(ctx context.Context, host string) error {
	if err := s.detach(ctx, host); err != nil {
		return err
	}
	return unplug(host)
}

// detach removes the port from Open vSwitch, by name, also when the mirror does not show it yet.
func (s *Server) detach(ctx context.Context, host string) error {
	var ops []ovsdb.Op
	for port := range ovsdb.Rows[ovsdb.Port](s.ovs.View()) {
		if port.Name == host {
			ops = append(ops, ovsdb.Mutate("Bridge", ovsdb.DeleteFrom("ports", port.UUID)).Where("name", "==", claims.IntegrationBridge))
		}
	}
	if len(ops) == 0 {
		return nil
	}
	if _, err := s.ovs.Transact(ctx, ops...); err != nil {
		return fmt.Errorf("remove port %s: %w", host, err)
	}
	s.notify()
	return nil
}

// Listen answers the plugin on a unix socket until ctx ends.
func (s *Server) Listen(ctx context.Context, l net.Listener) error {
	srv := &http.Server{Handler: s, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cni: %w", err)
	}
	return nil
}
