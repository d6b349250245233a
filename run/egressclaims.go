package run

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"hairpin/cluster"
)

// verifyWithin is how long the API may take to say whose an address is.
const verifyWithin = 500 * time.Millisecond

// claim is what was heard on the wire: somebody else has one of this node's egress addresses.
type claim struct {
	address netip.Addr
	mac     cluster.MAC
}

// verdict is what the API says of an address that two have.
type verdict struct {
	address netip.Addr
	claimer string // the other node
	node    string // whose it is; empty when nobody could say
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
	client kubernetes.Interface
	inbox  *inbox
	drop   func() // counts what is not asked
	queue  chan claimQuestion

	mu   sync.Mutex
	open map[netip.Addr]bool // asked, or to be asked
}

type claimQuestion struct {
	name string // of the EgressIP
	verdict
}

func newVerifier(client kubernetes.Interface, b *inbox, drop func()) *verifier {
	return &verifier{client: client, inbox: b, drop: drop, queue: make(chan claimQuestion, mostQuestions), open: map[netip.Addr]bool{}}
}

// ask takes a question and returns at once. One about an address of which the answer is on its way is dropped, and so is one
// too many.
func (v *verifier) ask(e *cluster.EgressIP, address netip.Addr, claimer string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.open[address] {
		v.drop()
		return
	}
	select {
	case v.queue <- claimQuestion{e.Owner.Name, verdict{address: address, claimer: claimer}}:
		v.open[address] = true
	default:
		v.drop()
	}
}

// run asks until ctx ends.
func (v *verifier) run(ctx context.Context) {
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
	o, err := getEgressIP(ctx, v.client, q.name)
	switch {
	case err == nil:
		for _, i := range o.Status.Items {
			if x, err := netip.ParseAddr(i.EgressIP); err == nil && x == q.address {
				q.node = i.Node
			}
		}
		fallthrough
	case apierrors.IsNotFound(err):
		if q.node == "" {
			q.node = "nobody"
		}
	}
	v.mu.Lock()
	delete(v.open, q.address)
	v.mu.Unlock()
	v.inbox.put(func(m *mail) { m.verdicts = append(m.verdicts, q.verdict) })
}

// hear decides what a claim means. It tells whether this node should announce the address again.
func (v *egressView) hear(now time.Time, c claim) (defend bool) {
	if v.out == nil {
		return false
	}
	i := slices.IndexFunc(v.out.EgressIPs, func(e *cluster.EgressIP) bool { return carriedBy(e, v.node, c.address) })
	if i < 0 {
		return false
	}
	seen := v.out.EgressIPs[i]
	e := find(v.base.EgressIPs, seen.Owner) // what is gone is not carried
	other := ""
	for _, n := range v.base.Nodes {
		if n.Gateway.MAC == c.mac && n.Name != v.node {
			other = n.Name
		}
	}
	at := nodeOf(e, c.address)
	switch {
	case other == "":
		v.strangers[c.address] = stranger{c.mac, now, e.Owner}
		return true
	case at == other: // taken over too early
		v.doubt(other)
		return false
	case slices.ContainsFunc(seen.Moving, func(m cluster.Move) bool { return m.Address == c.address }):
		return nodeOf(e, c.address) == v.node // both have it, and the new one is to be believed
	case at == v.node && v.alone:
		return true
	case at == v.node:
		v.verify(e, c.address, other)
	}
	return false
}

// judge takes what the API said. It tells whether this node should announce the address again.
func (v *egressView) judge(now time.Time, w verdict) (defend bool) {
	if v.base == nil {
		return false
	}
	_, was := v.yielded[w.address]
	switch {
	case w.node == v.node:
		delete(v.yielded, w.address)
		v.stale = v.stale || was
		return true
	case was:
		return false
	}
	for _, e := range v.base.EgressIPs {
		if nodeOf(e, w.address) == v.node {
			v.log.Warn("released egress address: another node has it", "address", w.address, "other", w.claimer, "apiSays", w.node)
			v.yielded[w.address] = yield{w.claimer, e.Assigned, now.Add(yieldCheck)}
			v.stale = true
		}
	}
	return false
}

// ageClaims forgets what is over, and asks again what is not.
func (v *egressView) ageClaims(now time.Time, s *cluster.Snapshot) (again time.Duration) {
	for a, x := range v.strangers {
		if now.Sub(x.last) > conflictFor {
			delete(v.strangers, a)
			continue
		}
		again = sooner(again, conflictFor-now.Sub(x.last)+time.Millisecond)
	}
	for a, y := range v.yielded {
		i := slices.IndexFunc(s.EgressIPs, func(e *cluster.EgressIP) bool { return nodeOf(e, a) == v.node })
		if i < 0 || !slices.Equal(s.EgressIPs[i].Assigned, y.items) { // it was decided anew
			delete(v.yielded, a)
			v.stale = true
			continue
		}
		if !y.check.After(now) {
			y.check = now.Add(yieldCheck)
			v.yielded[a] = y
			v.verify(s.EgressIPs[i], a, y.to)
		}
		again = sooner(again, y.check.Sub(now))
	}
	return again
}

// nodeOf gives the node that has an address of an EgressIP; empty when none has.
func nodeOf(e *cluster.EgressIP, a netip.Addr) string {
	for _, x := range e.Assigned {
		if x.Address == a {
			return x.Node
		}
	}
	return ""
}

// carriedBy tells whether a node is the one to answer for an address. One that moves has the new node.
func carriedBy(e *cluster.EgressIP, node string, a netip.Addr) bool {
	for _, m := range e.Moving {
		if m.Address == a {
			return m.To == node
		}
	}
	return nodeOf(e, a) == node
}
