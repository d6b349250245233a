package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hairpin/api/v1alpha1"
	"hairpin/cluster"
	"hairpin/plan/assign"
	"hairpin/retry"
	"hairpin/watch"
)

// loadBalancers gives Services and EgressIPs their addresses of LoadBalancerPools for the leader.
// It writes these into their status, and the owners and the node of each address into the status of
// the pools.
type loadBalancers struct {
	egress   *egressIPs // has the elected nodes, and the reasons of Events
	services map[cluster.Owner]writtenService
	pools    map[cluster.Owner]writtenPool
	warned   lastWarning

	mu sync.Mutex // of services and pools, while several are written
}

// writtenService is the status of a Service that the watch may not show yet. Until then, it
// replaces the one in the Snapshot, so that no other Service gets the address.
type writtenService struct {
	uid       string
	seen      *cluster.LoadBalancer // what the watch showed at the time
	ingress   []netip.Addr
	recorded  []cluster.IngressPort
	condition metav1.Condition
	until     time.Time
}

// writtenPool is the status of a LoadBalancerPool.
type writtenPool = pendingStatus[*cluster.Pool, v1alpha1.LoadBalancerPoolStatus]

func newLoadBalancers(g *egressIPs) *loadBalancers {
	return &loadBalancers{egress: g, services: map[cluster.Owner]writtenService{},
		pools: map[cluster.Owner]writtenPool{}}
}

// round allocates addresses, and writes what differs. It runs after the round of egressIPs. It
// returns addresses that Services do not get as problems, the use of each pool, and the time until
// it must be called again.
func (b *loadBalancers) round(ctx context.Context, s *cluster.Snapshot,
	now time.Time) ([]cluster.Problem, []assign.PoolUse, time.Duration) {
	if len(s.LoadBalancers)+len(s.Pools) == 0 {
		return nil, nil, 0
	}
	var problems []cluster.Problem
	report := func(o cluster.Owner, field, reason, message string) {
		p := cluster.Problem{Owner: o, Field: field, Message: message}
		b.egress.reasons[p] = reason
		problems = append(problems, p)
	}
	allocations, uses := assign.LoadBalancers(b.withWritten(s, now))
	var changes []func() error
	var again time.Duration
	byOwner := map[cluster.Owner]*cluster.LoadBalancer{}
	for i, a := range allocations { // a.Service may have a status that the watch does not show yet
		for _, r := range a.Refused {
			field := "status.loadBalancer.ingress"
			if a.Service.Pool != "" { // an EgressIP
				field = "spec.addressPool"
			}
			report(a.Service.Owner, field, r.Reason, r.Message)
		}
		l := s.LoadBalancers[i]
		byOwner[l.Owner] = l
		c := b.condition(a)
		if slices.Equal(a.Service.Ingress, a.Addresses) && slices.Equal(a.Service.Recorded, a.Recorded) &&
			!a.Service.Foreign && sameCondition(a.Service.Condition, c) {
			continue
		}
		changes = append(changes, func() error { return b.writeAddresses(ctx, s, l, a, c, now) })
	}
	for i, u := range uses {
		for _, f := range u.Exhausted {
			report(u.Pool.Owner, "spec.ranges", assign.ReasonExhausted, fmt.Sprintf("no %s address is free", f))
		}
		p, w := s.Pools[i], b.pools[u.Pool.Owner]
		status, last := b.statusOf(s, u, byOwner), w.newest(p, &p.Status, now)
		again = retry.Sooner(again, addPrevious(last, &status, b.egress.electedNodes, now))
		if samePoolStatus(last, &status) {
			continue
		}
		changes = append(changes, func() error { return b.writePool(ctx, p, u, status, now) })
	}
	err := writeAll(changes)
	return problems, uses, retry.Sooner(again, b.warned.log(ctx, b.egress.log, "write load balancer addresses", err))
}

// withWritten replaces statuses that the watch has not updated since the write with the written
// ones.
func (b *loadBalancers) withWritten(s *cluster.Snapshot, now time.Time) *cluster.Snapshot {
	out := *s
	out.LoadBalancers = slices.Clone(s.LoadBalancers)
	present := map[cluster.Owner]bool{}
	for i, l := range s.LoadBalancers {
		present[l.Owner] = true
		w, ok := b.services[l.Owner]
		if !ok {
			continue
		}
		if w.uid != l.UID || !slices.Equal(w.seen.Ingress, l.Ingress) || w.seen.Foreign != l.Foreign ||
			!slices.Equal(w.seen.Recorded, l.Recorded) || w.seen.Condition != l.Condition || now.After(w.until) {
			delete(b.services, l.Owner)
			continue
		}
		with := *l
		with.Ingress, with.Recorded, with.Foreign, with.Condition = w.ingress, w.recorded, false, w.condition
		out.LoadBalancers[i] = &with
	}
	maps.DeleteFunc(b.services, func(o cluster.Owner, _ writtenService) bool { return !present[o] })
	return &out
}

// condition returns the desired condition of a Service.
func (b *loadBalancers) condition(a assign.Allocation) metav1.Condition {
	c := metav1.Condition{Type: a.Service.ConditionType(), Status: metav1.ConditionTrue, Reason: "Allocated",
		Message: "the " + a.Service.Owner.Kind + " has its addresses"}
	var why []string
	for _, r := range a.Refused {
		if r.Reason == assign.ReasonReleased && len(a.Addresses) > 0 {
			continue // it has another one
		}
		why = append(why, r.Message)
		c.Reason = r.Reason
	}
	if len(why) > 0 {
		c.Status, c.Message = metav1.ConditionFalse, joinFirst(why)
	}
	list := []metav1.Condition{a.Service.Condition}
	if a.Service.Condition.Type == "" {
		list = nil
	}
	meta.SetStatusCondition(&list, c)
	return list[0]
}

func sameCondition(a, b metav1.Condition) bool {
	return sameConditions([]metav1.Condition{a}, []metav1.Condition{b})
}

// statusOf returns the desired status of a pool.
func (b *loadBalancers) statusOf(s *cluster.Snapshot, u assign.PoolUse,
	services map[cluster.Owner]*cluster.LoadBalancer) v1alpha1.LoadBalancerPoolStatus {
	status := v1alpha1.LoadBalancerPoolStatus{InUse: int64(len(u.Addresses)), Available: u.Available,
		Conditions: slices.Clone(u.Pool.Status.Conditions)}
	for _, x := range u.Addresses {
		status.Addresses = append(status.Addresses, b.addressStatus(u.Pool, x, services))
	}
	for _, c := range []metav1.Condition{rangesCondition(s, u.Pool), availableCondition(u)} {
		c.ObservedGeneration = u.Pool.Generation
		meta.SetStatusCondition(&status.Conditions, c)
	}
	return status
}

// addressStatus returns the status of a used address of a pool: its node, or why it has none.
func (b *loadBalancers) addressStatus(pool *cluster.Pool, x assign.UsedAddress,
	services map[cluster.Owner]*cluster.LoadBalancer) v1alpha1.PoolAddress {
	out := v1alpha1.PoolAddress{Address: x.Address.String(), Node: x.Node}
	for _, o := range x.Services {
		out.Services = append(out.Services, cmp.Or(o.Namespace, o.Kind)+"/"+o.Name)
	}
	if x.Node != "" {
		return out
	}
	if h, elected := b.egress.electedNodes[x.Address]; elected {
		out.Node, out.Message = h.node, h.message
		return out
	}
	// A node is elected when the watch shows the address in the status of the Service, unless no
	// Service is served at it.
	if l := services[x.Services[0]]; l != nil && slices.Contains(l.Ingress, x.Address) &&
		slices.ContainsFunc(pool.Status.Addresses, func(y v1alpha1.PoolAddress) bool {
			return y.Address == out.Address && slices.Equal(y.Services, out.Services)
		}) {
		out.Message = fmt.Sprintf("%s is not served at %s", x.Services[0], x.Address)
	}
	return out
}

// rangesCondition reports whether all ranges of a pool are valid.
func rangesCondition(s *cluster.Snapshot, pool *cluster.Pool) metav1.Condition {
	ranges := metav1.Condition{Type: v1alpha1.ConditionRanges, Status: metav1.ConditionTrue, Reason: "Valid",
		Message: "every range is used"}
	if pool.NodeAddresses {
		ranges.Message = "every range of ports is used"
	}
	var why []string
	for _, p := range s.Problems {
		if p.Owner == pool.Owner {
			why = append(why, p.Message)
		}
	}
	if len(why) > 0 {
		ranges.Status, ranges.Reason, ranges.Message = metav1.ConditionFalse, "Invalid", joinFirst(why)
	}
	return ranges
}

// availableCondition reports whether a pool has a free address of each family.
func availableCondition(u assign.PoolUse) metav1.Condition {
	free := metav1.Condition{Type: v1alpha1.ConditionAvailable, Status: metav1.ConditionTrue, Reason: "Available",
		Message: "each family has a free address"}
	no := func(reason, message string) {
		free.Status, free.Reason, free.Message = metav1.ConditionFalse, reason, message
	}
	switch {
	case u.Pool.NodeAddresses && u.Available == 0:
		no(assign.ReasonNoNode, "the pool selects no node")
	case len(u.Exhausted) == 1:
		no(assign.ReasonExhausted, fmt.Sprintf("no %s address is free", u.Exhausted[0]))
	case !u.Pool.NodeAddresses && u.Available == 0: // of both families, or without a range
		no(assign.ReasonExhausted, "no address is free")
	}
	return free
}

// Limits of previous nodes: of an address, and of a pool, because etcd limits the size of objects.
const (
	maxPrevious       = 4
	maxPreviousOfPool = 1024
)

// addPrevious adds the previous nodes of load balancer addresses to the status after, from the
// status before, and returns the time until the next entry expires. It adds unreachable nodes, too:
// one that was paused still has its connections when it continues. Agents forward nothing to a node
// while it is unreachable.
func addPrevious(before, after *v1alpha1.LoadBalancerPoolStatus, elected map[netip.Addr]electedNode, now time.Time,
) (again time.Duration) {
	last, left := map[string]*v1alpha1.PoolAddress{}, maxPreviousOfPool
	for i := range before.Addresses {
		last[before.Addresses[i].Address] = &before.Addresses[i]
	}
	for i := range after.Addresses {
		x := &after.Addresses[i]
		old := last[x.Address]
		if a, err := netip.ParseAddr(x.Address); err != nil || old == nil || !elected[a].onlyAnnounced {
			continue
		}
		limit := min(maxPrevious, left)
		if n := old.Node; n != "" && n != x.Node && limit > 0 {
			until := metav1.NewTime(now.Add(cluster.ForwardTime).Truncate(time.Second))
			x.Previous = append(x.Previous, v1alpha1.PreviousNode{Node: n, Until: until})
		}
		for _, p := range old.Previous {
			ends := p.Until.Sub(now) // by the clock of another controller, possibly
			if ends > 0 && ends < 2*cluster.ForwardTime && p.Node != x.Node && p.Node != old.Node &&
				len(x.Previous) < limit {
				x.Previous = append(x.Previous, p)
			}
		}
		for _, p := range x.Previous {
			again = retry.Sooner(again, p.Until.Sub(now))
		}
		left -= len(x.Previous)
	}
	return again
}

func samePoolStatus(a, b *v1alpha1.LoadBalancerPoolStatus) bool {
	return a.InUse == b.InUse && a.Available == b.Available && sameConditions(a.Conditions, b.Conditions) &&
		slices.EqualFunc(a.Addresses, b.Addresses,
			func(x, y v1alpha1.PoolAddress) bool { return reflect.DeepEqual(x, y) })
}

// writeAddresses writes the status of a Service or EgressIP.
func (b *loadBalancers) writeAddresses(ctx context.Context, s *cluster.Snapshot, l *cluster.LoadBalancer,
	a assign.Allocation, c metav1.Condition, now time.Time) error {
	var err error
	if l.Pool == "" { // a Service
		err = b.patchService(ctx, l, a, c)
	} else {
		err = b.patchEgressIP(ctx, s, l, a.Addresses, c)
	}
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.services[l.Owner] = writtenService{l.UID, l, a.Addresses, a.Recorded, c, now.Add(watchLag)}
	if !slices.Equal(l.Ingress, a.Addresses) {
		b.egress.meters.Count("hairpin_controller_load_balancer_allocations_total")
		b.egress.log.Info("allocated load balancer addresses", "object", l.Owner.String(), "were", l.Ingress, "are",
			a.Addresses)
	}
	return nil
}

// patchService writes the status of a Service. A strategic merge patch keeps the conditions of
// other programs.
func (b *loadBalancers) patchService(ctx context.Context, l *cluster.LoadBalancer, a assign.Allocation,
	c metav1.Condition) error {
	var ingress []corev1.LoadBalancerIngress
	for _, x := range a.Addresses {
		in := corev1.LoadBalancerIngress{IP: x.String(), IPMode: new(corev1.LoadBalancerIPModeVIP)}
		for _, r := range a.Recorded {
			if r.Address != x {
				continue
			}
			p := corev1.PortStatus{Port: int32(r.Port), Protocol: corev1.Protocol(strings.ToUpper(r.Protocol.String()))}
			if r.Error != "" {
				p.Error = new(r.Error)
			}
			in.Ports = append(in.Ports, p)
		}
		ingress = append(ingress, in)
	}
	return patchStatus(ctx, b.egress.client, l.Owner, l.UID, types.StrategicMergePatchType, map[string]any{
		"loadBalancer": map[string]any{"ingress": ingress}, "conditions": []metav1.Condition{c},
	}, "/api/v1/namespaces/"+l.Owner.Namespace+"/services/"+l.Owner.Name+"/status")
}

// patchEgressIP writes the status of an EgressIP. A merge patch replaces the conditions; a round of
// egressIPs restores what another write changed meanwhile.
func (b *loadBalancers) patchEgressIP(ctx context.Context, s *cluster.Snapshot, l *cluster.LoadBalancer,
	list []netip.Addr, c metav1.Condition) error {
	status := map[string]any{"addresses": list}
	conditions := []metav1.Condition{}
	if i := slices.IndexFunc(s.EgressIPs, func(e *cluster.EgressIP) bool { return e.Owner == l.Owner }); i >= 0 {
		conditions = slices.Clone(s.EgressIPs[i].Conditions)
	} else {
		status["items"] = []string{} // required
	}
	meta.SetStatusCondition(&conditions, c)
	status["conditions"] = conditions
	path := watch.EgressIPPath() + "/" + l.Owner.Name
	return patchStatus(ctx, b.egress.client, l.Owner, l.UID, types.MergePatchType, status, path+"/status", path)
}

// writePool writes the status of a pool, made from u, and with it the nodes of the addresses.
func (b *loadBalancers) writePool(ctx context.Context, p *cluster.Pool, u assign.PoolUse,
	status v1alpha1.LoadBalancerPoolStatus, now time.Time) error {
	if err := patchStatus(ctx, b.egress.client, p.Owner, p.UID, types.MergePatchType, map[string]any{
		"addresses": status.Addresses, "inUse": status.InUse, "available": status.Available,
		"conditions": status.Conditions,
	}, watch.PoolPath()+"/"+p.Owner.Name+"/status"); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pools[p.Owner] = writtenPool{p, status, now.Add(watchLag)}
	for i, x := range status.Addresses {
		owner := u.Addresses[i].Services[0]
		if c, ok := b.egress.announced[owner]; ok && !slices.Equal(c.e.Assigned, c.items) {
			b.egress.written[owner] = writtenStatus{c.e.UID, c.e.Assigned, c.items}
		}
		j := slices.IndexFunc(p.Status.Addresses, func(y v1alpha1.PoolAddress) bool { return y.Address == x.Address })
		if j >= 0 && p.Status.Addresses[j].Node != x.Node {
			b.egress.log.Info("assigned load balancer address", "address", x.Address, "services",
				strings.Join(x.Services, ","), "node", x.Node)
		}
	}
	return nil
}
