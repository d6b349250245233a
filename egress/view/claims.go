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
	node    string // the node that the address is assigned to; empty if unknown
}

// verifies requests the node of an address from the API, asynchronously.
type verifies func(e *cluster.EgressIP, a netip.Addr, claimer string)

// Limits, because any machine on the network can send claims, as many as it likes.
const (
	verifiers     = 4   // parallel requests
	mostQuestions = 256 // waiting requests
)

// verifier requests the nodes of addresses from the API, one request at a time per address.
type verifier struct {
	client *kubeapi.Client
	tell   func(Verdict)
	drop   func() // counts requests that are not sent
	queue  chan claimQuestion

	mu   sync.Mutex
	open map[netip.Addr]bool // requested, or waiting
}

type claimQuestion struct {
	of cluster.Owner // EgressIP or EgressService
	Verdict
}

// NewVerifier makes a verifier that passes its verdicts to tell.
func NewVerifier(client *kubeapi.Client, tell func(Verdict), drop func()) *verifier {
	return &verifier{client: client, tell: tell, drop: drop, queue: make(chan claimQuestion, mostQuestions),
		open: map[netip.Addr]bool{}}
}

// Ask queues a request and returns at once. It drops a request about an address with an open
// request, and one beyond the limit.
func (v *verifier) Ask(e *cluster.EgressIP, address netip.Addr, claimer string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.open[address] {
		v.drop()
		return
	}
	select {
	case v.queue <- claimQuestion{e.Owner, Verdict{Address: address, claimer: claimer}}:
		v.open[address] = true
	default:
		v.drop()
	}
}

// Run sends requests until ctx ends.
func (v *verifier) Run(ctx context.Context) {
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

func (v *verifier) answer(ctx context.Context, q claimQuestion) {
	ctx, cancel := context.WithTimeout(ctx, verifyWithin)
	defer cancel()
	node, err := kube.EgressNode(ctx, v.client, q.of, q.Address)
	if err == nil || apierrors.IsNotFound(err) {
		q.node = cmp.Or(node, "nobody")
	}
	v.mu.Lock()
	delete(v.open, q.Address)
	v.mu.Unlock()
	v.tell(q.Verdict)
}

// OnClaim handles a claim. It reports whether this node should announce the address again.
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
	if y, is := v.released[c.Address]; is && other != "" {
		y.to, y.claimed = other, now
		v.stale = v.stale || y.to != v.released[c.Address].to
		v.released[c.Address] = y
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
	case v.moving(now, c.Address): // both have it, and the new node is right
		return at == v.node
	case at == v.node && v.alone:
		v.hadAlso(now, c.Address, other)
		return true
	case at == v.node:
		v.Verify(e, c.Address, other)
	}
	return false
}

// moving reports whether an address moves between nodes that may not have the same status yet. What
// a load balancer address leaves on its old node takes longer.
func (v *View) moving(now time.Time, a netip.Addr) bool {
	m := v.moves[a]
	return m != nil && !m.had && now.Sub(m.begun) < moveEnds
}

// OnVerdict handles a verdict. It reports whether this node should announce the address again.
func (v *View) OnVerdict(now time.Time, w Verdict) (defend bool) {
	if v.Base == nil {
		return false
	}
	y, was := v.released[w.Address]
	switch {
	case w.node == v.node, was && w.node == "" && now.Sub(y.claimed) >= v.abandonedAfter(y.to):
		delete(v.released, w.Address)
		v.stale = v.stale || was
		v.hadAlso(now, w.Address, w.claimer)
		return true
	case was:
		return false
	}
	for _, e := range v.Base.EgressIPs {
		if e.NodeOf(w.Address) == v.node {
			v.log.Warn("released egress address: another node has it", "address", w.Address, "other", w.claimer,
				"apiSays", w.node)
			v.released[w.Address] = releasedAddress{w.claimer, e.Assigned, now.Add(yieldCheck), now}
			v.stale = true
		}
	}
	return false
}

// abandonedAfter returns for how long another node must not have answered for a released address
// until this node has it again, if the API does not answer. Two nodes that released an address to
// each other have different times, so that one of them answers before the other one does.
func (v *View) abandonedAfter(other string) time.Duration {
	if v.node < other {
		return abandoned
	}
	return 2 * abandoned
}

// ageClaims removes expired claims, and verifies released addresses again.
func (v *View) ageClaims(now time.Time, s *cluster.Snapshot) (again time.Duration) {
	for a, x := range v.foreignClaims {
		if now.Sub(x.last) > conflictFor {
			delete(v.foreignClaims, a)
			continue
		}
		again = retry.Sooner(again, conflictFor-now.Sub(x.last)+time.Millisecond)
	}
	for a, y := range v.released {
		i := slices.IndexFunc(s.EgressIPs, func(e *cluster.EgressIP) bool { return e.NodeOf(a) == v.node })
		if i < 0 || !slices.Equal(s.EgressIPs[i].Assigned, y.items) { // the controller assigned it again
			delete(v.released, a)
			v.stale = true
			continue
		}
		if !y.check.After(now) {
			y.check = now.Add(yieldCheck)
			v.released[a] = y
			v.Verify(s.EgressIPs[i], a, y.to)
		}
		again = retry.Sooner(again, y.check.Sub(now))
	}
	return again
}
