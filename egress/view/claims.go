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

// verifyWithin is how long the API may take to say whose an address is.
const verifyWithin = 500 * time.Millisecond

// Verdict is what the API says of an address that two have.
type Verdict struct {
	Address netip.Addr
	claimer string // the other node
	node    string // whose it is; empty if unknown
}

// verifies asks the API, beside everything else, whose an address is.
type verifies func(e *cluster.EgressIP, a netip.Addr, claimer string)

// Anybody on the network can make claims, as many as they like.
const (
	verifiers     = 4   // questions that are asked at once
	mostQuestions = 256 // that wait
)

// verifier asks the API whose addresses are, one question at a time about each of them.
type verifier struct {
	client *kubeapi.Client
	tell   func(Verdict)
	drop   func() // counts what is not asked
	queue  chan claimQuestion

	mu   sync.Mutex
	open map[netip.Addr]bool // asked, or to be asked
}

type claimQuestion struct {
	of cluster.Owner // EgressIP or EgressService
	Verdict
}

// NewVerifier makes one that hands its verdicts to tell.
func NewVerifier(client *kubeapi.Client, tell func(Verdict), drop func()) *verifier {
	return &verifier{client: client, tell: tell, drop: drop, queue: make(chan claimQuestion, mostQuestions),
		open: map[netip.Addr]bool{}}
}

// Ask takes a question and returns at once. One about an address of which the answer is on its way
// is dropped, and so is one too many.
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

// Run asks until ctx ends.
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

// OnClaim decides what a claim means. It tells whether this node should announce the address again.
func (v *View) OnClaim(now time.Time, c wire.Claim) (defend bool) {
	if v.out == nil {
		return false
	}
	i := slices.IndexFunc(v.out.EgressIPs, func(e *cluster.EgressIP) bool { return e.CarriedBy(v.node, c.Address) })
	if i < 0 {
		return false
	}
	seen := v.out.EgressIPs[i]
	e := find(v.Base.EgressIPs, seen.Owner) // what is gone is not carried
	other := ""
	for _, n := range v.Base.Nodes {
		if n.Gateway.MAC == c.MAC && n.Name != v.node {
			other = n.Name
		}
	}
	at := e.NodeOf(c.Address)
	switch {
	case other == "":
		v.foreignClaims[c.Address] = foreignClaim{c.MAC, now, e.Owner}
		return true
	case at == other: // taken over too early
		v.treatAsAlive(other)
		return false
	case slices.ContainsFunc(seen.Moving, func(m cluster.Move) bool { return m.Address == c.Address }):
		return e.NodeOf(c.Address) == v.node // both have it, and the new one is to be believed
	case at == v.node && v.alone:
		return true
	case at == v.node:
		v.Verify(e, c.Address, other)
	}
	return false
}

// OnVerdict takes what the API said. It tells whether this node should announce the address again.
func (v *View) OnVerdict(now time.Time, w Verdict) (defend bool) {
	if v.Base == nil {
		return false
	}
	_, was := v.released[w.Address]
	switch {
	case w.node == v.node:
		delete(v.released, w.Address)
		v.stale = v.stale || was
		return true
	case was:
		return false
	}
	for _, e := range v.Base.EgressIPs {
		if e.NodeOf(w.Address) == v.node {
			v.log.Warn("released egress address: another node has it", "address", w.Address, "other", w.claimer,
				"apiSays", w.node)
			v.released[w.Address] = releasedAddress{w.claimer, e.Assigned, now.Add(yieldCheck)}
			v.stale = true
		}
	}
	return false
}

// ageClaims forgets what is over, and asks again what is not.
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
		if i < 0 || !slices.Equal(s.EgressIPs[i].Assigned, y.items) { // it was decided anew
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
