package view

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"hairpin/cluster"
	"hairpin/egress/wire"
	"hairpin/kube"
	"hairpin/kubeapi"
	"hairpin/retry"
)

// verifyWithin limits how long the API may take to return the node of an address.
const verifyWithin = 500 * time.Millisecond

// Verdict is the API's decision on an address that two nodes have.
type Verdict struct {
	Address netip.Addr
	claimer string // the other node
	node    string // the node that the address is assigned to, or noNode; empty if unknown
}

// noNode stands for the node of an address that is assigned to none. No node has this name.
const noNode = "no node"

// verifyFunc requests the node of an address from the API, asynchronously.
type verifyFunc func(e *cluster.EgressIP, a netip.Addr, claimer string)

// Limits, because any machine on the network can send claims, as many as it likes.
const (
	verifiers  = 4   // parallel requests
	maxWaiting = 256 // requests in the queue
)

// Verifier requests the nodes of addresses from the API, one request at a time per address.
type Verifier struct {
	client *kubeapi.Client
	report func(Verdict)
	drop   func() // counts requests that are not sent
	queue  chan verifyRequest

	mu   sync.Mutex
	open map[netip.Addr]bool // requested, or waiting
}

type verifyRequest struct {
	owner cluster.Owner // EgressIP or EgressService
	Verdict
}

// NewVerifier makes a Verifier that passes its verdicts to report. drop counts requests that are
// not sent.
func NewVerifier(client *kubeapi.Client, report func(Verdict), drop func()) *Verifier {
	return &Verifier{client: client, report: report, drop: drop, queue: make(chan verifyRequest, maxWaiting),
		open: map[netip.Addr]bool{}}
}

// Ask queues a request and returns at once. It drops a request about an address with an open
// request, and one beyond the limit.
func (v *Verifier) Ask(e *cluster.EgressIP, address netip.Addr, claimer string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.open[address] {
		v.drop()
		return
	}
	select {
	case v.queue <- verifyRequest{e.Owner, Verdict{Address: address, claimer: claimer}}:
		v.open[address] = true
	default:
		v.drop()
	}
}

// Run sends requests until ctx ends.
func (v *Verifier) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for range verifiers {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case q := <-v.queue:
					v.answer(ctx, q)
				}
			}
		})
	}
	wg.Wait()
}

func (v *Verifier) answer(ctx context.Context, q verifyRequest) {
	ctx, cancel := context.WithTimeout(ctx, verifyWithin)
	defer cancel()
	node, err := kube.EgressNode(ctx, v.client, q.owner, q.Address)
	if err == nil || apierrors.IsNotFound(err) {
		q.node = cmp.Or(node, noNode)
	}
	v.mu.Lock()
	delete(v.open, q.Address)
	v.mu.Unlock()
	v.report(q.Verdict)
}

// OnClaim handles a claim to an address of this node, or to one that it released. It reports
// whether this node should announce the address again.
func (v *View) OnClaim(now time.Time, c wire.Claim) (defend bool) {
	if v.out == nil {
		return false
	}
	other := ""
	for _, n := range v.Base.Nodes {
		if n.Gateway.MAC == c.MAC && n.Name != v.node {
			other = n.Name
		}
	}
	if released, is := v.released[c.Address]; is && other != "" {
		v.stale = v.stale || released.to != other
		released.to, released.claimed = other, now
		v.released[c.Address] = released
	}
	i := slices.IndexFunc(v.out.EgressIPs, func(e *cluster.EgressIP) bool { return e.CarriedBy(v.node, c.Address) })
	if i < 0 {
		return false
	}
	seen := v.out.EgressIPs[i]
	e := find(v.Base.EgressIPs, seen.Owner) // not nil: an EgressIP that is gone is not carried
	at := e.NodeOf(c.Address)
	switch {
	case other == "" && c.Solicited: // a router may reply for every address of a network (proxy ARP)
		return false
	case other == "":
		v.foreignClaims[c.Address] = foreignClaim{c.MAC, now, e.Owner}
		return true
	case at != v.node && v.lost[other]: // this node took the address over too early, or both nodes did
		v.treatAsAlive(other)
		return false
	case v.statusMayDiffer(now, c.Address): // both have it, and only the new node should answer
		return at == v.node
	case at == v.node && v.alone:
		v.moveBack(now, c.Address, other)
		return true
	case at == v.node:
		v.Verify(e, c.Address, other)
	}
	return false
}

// statusMayDiffer reports whether an address moves between nodes that may not have the same status
// yet. It is over before the move of a load balancer address, which lasts as long as open
// connections are forwarded.
func (v *View) statusMayDiffer(now time.Time, a netip.Addr) bool {
	m := v.moves[a]
	return m != nil && !m.back && now.Sub(m.begun) < moveEnds
}

// OnVerdict handles a verdict. It reports whether this node should announce the address again.
func (v *View) OnVerdict(now time.Time, w Verdict) (defend bool) {
	if v.Base == nil {
		return false
	}
	released, was := v.released[w.Address]
	switch {
	case w.node == v.node, was && w.node == "" && now.Sub(released.claimed) >= v.abandonedAfter(released.to):
		delete(v.released, w.Address)
		v.stale = v.stale || was
		v.moveBack(now, w.Address, w.claimer)
		return true
	case was:
		return false
	}
	for _, e := range v.Base.EgressIPs {
		if e.NodeOf(w.Address) == v.node {
			v.log.Warn("released egress address: another node has it", "address", w.Address, "other", w.claimer,
				"apiSays", w.node)
			v.released[w.Address] = releasedAddress{w.claimer, e.Assigned, now.Add(recheckReleased), now}
			v.stale = true
		}
	}
	return false
}

// abandonedAfter returns how long after the last claim of another node this node takes a released
// address again, if the API does not reply. Two nodes that released an address to each other have
// different times, so that one of them answers before the other one does.
func (v *View) abandonedAfter(other string) time.Duration {
	if v.node < other {
		return abandonTime
	}
	return 2 * abandonTime
}

// ageClaims removes expired claims, and verifies released addresses again.
func (v *View) ageClaims(now time.Time, s *cluster.Snapshot) (again time.Duration) {
	for a, claim := range v.foreignClaims {
		if now.Sub(claim.last) > conflictFor {
			delete(v.foreignClaims, a)
			continue
		}
		again = retry.Sooner(again, conflictFor-now.Sub(claim.last)+time.Millisecond)
	}
	for a, released := range v.released {
		i := slices.IndexFunc(s.EgressIPs, func(e *cluster.EgressIP) bool { return e.NodeOf(a) == v.node })
		if i < 0 || !slices.Equal(s.EgressIPs[i].Assigned, released.items) { // the controller assigned it again
			delete(v.released, a)
			v.stale = true
			continue
		}
		if !released.check.After(now) {
			released.check = now.Add(recheckReleased)
			v.released[a] = released
			v.Verify(s.EgressIPs[i], a, released.to)
		}
		again = retry.Sooner(again, released.check.Sub(now))
	}
	return again
}
