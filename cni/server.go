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
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"hairpin/cluster"
	"hairpin/cni/veth"
	"hairpin/ovsdb"
	"hairpin/signal"
)

const (
	// readyTimeout limits how long an ADD waits for an agent that is not ready, for example just
	// after its start, and how long a CHECK waits for what the agent does not know yet.
	readyTimeout = 5 * time.Second
	// serveTimeout is the time limit of a request: half of requestTimeout.
	serveTimeout = 45 * time.Second
	// maxRequest is the maximum size of a request in bytes.
	maxRequest = 16 << 20
)

// Facts are the facts of the node that pods need. The agent sets them in every round.
type Facts struct {
	Subnets   []netip.Prefix // the node's pod CIDRs, IPv4 first; none: not known yet
	MTU       int            // bytes
	Userspace bool           // Open vSwitch runs the userspace datapath
	TSO       bool           // Open vSwitch runs with userspace-tso-enable
	// Reported are the cluster's pods according to the API. Services send to their addresses, which
	// after a reboot no pod may have yet: a pod keeps its own, and gets that of another pod last.
	Reported []*cluster.Pod
	// Bridge is the bridge for pods' ports: claims.IntegrationBridge or claims.ServiceBridge;
	// empty: not known yet.
	Bridge string
}

// pairs returns the options of pods' veth pairs.
func (f Facts) pairs() veth.Options {
	return veth.Options{MTU: f.MTU, Userspace: f.Userspace, TSO: f.TSO}
}

// Server is the part of the plugin that runs in the agent. It must be made by NewServer.
type Server struct {
	ovs     *ovsdb.Client // mirrors Interface, Port, Bridge and Open_vSwitch
	node    string
	log     *slog.Logger
	alloc   *allocator
	changed signal.Signal
	observe func(command string, took time.Duration, code uint)
	// deleteMegaflows is the argument of DeleteMegaflowsWith.
	deleteMegaflows func(ctx context.Context, port string, addresses []netip.Addr) error

	reconciling                      sync.Mutex
	reconcilesWanted, reconcilesDone atomic.Uint64 // Reconcile has work while they differ
	// offloads has, by the host's end, the options that Reconcile last applied to the pair.
	offloads map[string]veth.Options

	mu             sync.Mutex
	facts          Facts
	notReady       string                   // why pods cannot be served; empty = they can
	wasReady       bool                     // notReady was empty once: the desired state of pods is known
	factsChanged   signal.Broadcast         // notified when SetFacts changes notReady
	busy           map[string]chan struct{} // see lock; a channel is closed when its key is free
	reached        map[string]error         // see Reached
	reachedChanged signal.Broadcast         // notified when Reached changes anything
	health         health
}

// NewServer returns a Server that serves no pods before SetFacts.
func NewServer(ovs *ovsdb.Client, node string, log *slog.Logger) *Server {
	s := &Server{
		ovs: ovs, node: node, log: log, alloc: newAllocator(node), changed: signal.New(),
		observe:         func(string, time.Duration, uint) {},
		deleteMegaflows: func(context.Context, string, []netip.Addr) error { return nil },
		notReady:        "the cluster is not known yet", busy: map[string]chan struct{}{},
	}
	s.reconcilesWanted.Add(1)
	return s
}

// Observe makes the Server call f after each request, with its duration and CNI error code, 0 for
// none. Call it before Listen.
func (s *Server) Observe(f func(command string, took time.Duration, code uint)) { s.observe = f }

// DeleteMegaflowsWith makes the Server call f with a pod's port and addresses before the pod can
// send. f must delete the megaflows that an earlier port left in Open vSwitch. Call it before
// Listen.
func (s *Server) DeleteMegaflowsWith(f func(ctx context.Context, port string, addresses []netip.Addr) error) {
	s.deleteMegaflows = f
}

// SetFacts sets the node's facts, and the reason why it cannot serve pods now (empty: it can).
func (s *Server) SetFacts(f Facts, notReady string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.pairs() != s.facts.pairs() {
		s.reconcilesWanted.Add(1)
	}
	s.facts, s.wasReady = f, s.wasReady || notReady == ""
	if s.notReady != notReady {
		s.notReady = notReady
		s.factsChanged.Notify()
	}
}

// Changed signals, coalesced, that the result of Pods has changed.
func (s *Server) Changed() <-chan struct{} { return s.changed.C() }

// Pods returns the pods of this node that have an interface or are getting one, by name. The
// pointer to an unchanged pod stays the same.
func (s *Server) Pods() []*cluster.Pod { return s.alloc.pods(s.ovs.View()) }

// Listen serves the plugin on a unix socket until ctx ends.
func (s *Server) Listen(ctx context.Context, l net.Listener) error {
	srv := &http.Server{Handler: s, BaseContext: func(net.Listener) context.Context { return ctx }}
	// Requests in progress lose their connection: the plugins repeat them with the next agent.
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	go s.probe(ctx)
	if err := srv.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cni: %w", err)
	}
	return nil
}

// ServeHTTP serves a request of the plugin.
func (s *Server) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	begin := time.Now()
	var r request
	if err := json.NewDecoder(http.MaxBytesReader(w, q.Body, maxRequest)).Decode(&r); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	result, cniErr := s.dispatch(q.Context(), r)
	response := reply{Error: cniErr}
	if result != nil && cniErr == nil {
		text, err := json.Marshal(result)
		if err != nil {
			response.Error = errInternal("result", err)
		}
		response.Result = text
	}
	code := uint(0)
	if cniErr = response.Error; cniErr != nil {
		code = cniErr.Code
	}
	s.observe(r.Command, time.Since(begin), code)
	log := s.log.With("command", r.Command, "args", r.Args, "sandbox", r.ContainerID, "milliseconds",
		time.Since(begin).Milliseconds())
	if response.Error != nil {
		log.Warn("cni: request failed", "code", response.Error.Code, "error", response.Error.Error())
	} else {
		log.Debug("cni: served a request")
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(response); err != nil {
		log.Debug("cni: plugin disconnected", "error", err)
	}
}

// dispatch runs the command of a request.
func (s *Server) dispatch(ctx context.Context, r request) (*current.Result, *types.Error) {
	ctx, cancel := context.WithTimeout(ctx, serveTimeout)
	defer cancel()
	switch r.Command {
	case cmdStatus:
		s.tryWrite(ctx)
		return nil, s.addError()
	case cmdGC:
		return nil, s.collect(ctx, r)
	}
	key := attachmentKey(r.ContainerID, r.IfName)
	release, err := s.lock(ctx, key)
	if err != nil {
		return nil, errTryLater("another request for this sandbox", err)
	}
	defer release()
	switch r.Command {
	case cmdAdd:
		return s.add(ctx, r)
	case cmdDel:
		return nil, s.del(ctx, r, key)
	case cmdCheck:
		return nil, s.check(ctx, r, key)
	}
	return nil, errInvalidEnv("CNI_COMMAND %q is not known", r.Command)
}

// lock serializes requests with the same key: of the same attachment, or for the same pod.
func (s *Server) lock(ctx context.Context, key string) (release func(), err error) {
	for {
		s.mu.Lock()
		other, taken := s.busy[key]
		if !taken {
			done := make(chan struct{})
			s.busy[key] = done
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.busy, key)
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

// awaitReady waits until the agent is ready, for readyTimeout at most. It returns the facts, or why
// the node cannot serve pods with them.
func (s *Server) awaitReady(ctx context.Context) (Facts, *types.Error) {
	waiting, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		next := s.factsChanged.Next()
		s.mu.Lock()
		facts, notReady, cniErr := s.facts, s.notReady, s.readyError()
		s.mu.Unlock()
		if notReady == "" || waiting.Err() != nil {
			return facts, cniErr
		}
		select {
		case <-next:
		case <-waiting.Done():
		}
	}
}

// addError returns why an ADD would fail; nil if it would not.
func (s *Server) addError() *types.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cniErr := s.readyError(); cniErr != nil {
		return cniErr
	}
	if err := s.health.unwritable; err != nil {
		return errNotReady(fmt.Sprintf("the database of Open vSwitch cannot be written: %v", err))
	}
	return nil
}

// readyError returns why the node cannot serve pods now; nil if it can. The caller holds mu.
func (s *Server) readyError() *types.Error {
	switch {
	case s.notReady != "":
		return errNotReady(s.notReady)
	case len(s.facts.Subnets) == 0:
		return errNotReady(s.noSubnets())
	case !s.ovs.Connected():
		return errNotReady(fmt.Sprintf("Open vSwitch: %v", s.ovs.Err()))
	}
	return nil
}

// noSubnets returns why an agent that is ready has no subnets.
func (s *Server) noSubnets() string { return "Node/" + s.node + ": spec.podCIDRs: is empty" }
