package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "hairpin/api/v1"
	"hairpin/cluster"
	"hairpin/egress/probe"
	"hairpin/kube"
	"hairpin/kubeapi"
	"hairpin/ops"
	"hairpin/plan/assign"
	"hairpin/retry"
	"hairpin/watch"
)

// Further reasons of Events and conditions of EgressIPs, named as in OVN-Kubernetes. Package assign
// has the others.
const (
	reasonInvalidEgress = "InvalidEgressIP"  // not an address, or no selector
	reasonConflict      = "UndefinedRequest" // an older EgressIP selects the same pods
	reasonNoNamespace   = "NoNamespaceSelected"
)

// watchLag is the longest time that the watch may take to show a write.
const watchLag = 5 * time.Second

// pendingStatus is the last status S of an object O that was written. The watch may not show it
// until then.
type pendingStatus[O comparable, S any] struct {
	seen   O // what the watch showed at the time
	status S
	until  time.Time
}

// newest returns the newest status of an object that the watch shows with the status shown: the
// written one, if the watch may not show that yet.
func (w *pendingStatus[O, S]) newest(object O, shown *S, now time.Time) *S {
	if w.seen == object && now.Before(w.until) {
		return &w.status
	}
	return shown
}

// egressIPs assigns egress addresses to nodes for the leader, and writes the status of their
// objects. A cluster.EgressIP is made from one of three objects:
//   - an EgressIP,
//   - an EgressService (Service is set),
//   - a Service with load balancer addresses, which are only announced (OnlyAnnounced): type
//     loadBalancers writes the node of each into the status of its pool.
type egressIPs struct {
	client       *kubeapi.Client
	log          *slog.Logger
	meters       *ops.Meters
	addresses    addressMeter
	prober       *probe.Prober
	conflicts    *assign.Conflicts
	written      map[cluster.Owner]writtenStatus
	labels       map[string]writtenLabels       // by node
	reasons      map[cluster.Problem]string     // of the current Events
	electedNodes map[netip.Addr]electedNode     // of the addresses that this round has decided
	announced    map[cluster.Owner]statusChange // of this round, by Service with load balancer addresses
	warned       lastWarning
	labelsWarned lastWarning // of updateLabels
}

// electedNode is the node that announces an address, or why none does.
type electedNode struct {
	node, message string
	onlyAnnounced bool // it is a load balancer address, with which no pods leave
}

// writtenStatus is an assignment that the watch may not show yet. Until the watch shows it, it
// replaces the status in the Snapshot, so that the decision is not made again.
type writtenStatus struct {
	uid         string
	seen, items []cluster.Assignment // what the watch showed at the time, and what was written
}

func newEgressIPs(client *kubeapi.Client, log *slog.Logger, p *probe.Prober, m *ops.Meters) *egressIPs {
	return &egressIPs{client: client, log: log, meters: m, prober: p, addresses: newAddressMeter(),
		conflicts: assign.NewConflicts(),
		written:   map[cluster.Owner]writtenStatus{}, labels: map[string]writtenLabels{}}
}

// reason returns the reason of a problem's Event.
func (g *egressIPs) reason(p cluster.Problem) string {
	if p.Owner.Kind == "EgressIP" || p.Owner.Kind == "EgressService" {
		return cmp.Or(g.reasons[p], reasonInvalidEgress)
	}
	return cmp.Or(g.reasons[p], kube.ReasonProblem)
}

// egressRound is the working state of a round of egressIPs.
type egressRound struct {
	snapshot  *cluster.Snapshot
	conflicts map[cluster.Owner][]assign.Conflict // by the younger EgressIP; none until Pods are read
	problems  []cluster.Problem
	changes   []statusChange
	hosts     map[cluster.Owner]string // by EgressService
}

// round assigns addresses, and writes the statuses that differ. It returns the addresses without a
// node as problems, and the time until it must be called again.
func (g *egressIPs) round(ctx context.Context, s *cluster.Snapshot) ([]cluster.Problem, time.Duration) {
	g.reasons, g.electedNodes = map[cluster.Problem]string{}, map[netip.Addr]electedNode{}
	g.announced = map[cluster.Owner]statusChange{}
	if len(s.EgressIPs) == 0 {
		g.prober.SetTargets(nil)
		g.addresses = newAddressMeter()
		return nil, g.updateLabels(ctx, s, nil)
	}
	g.prober.SetTargets(probe.Targets(s, s.MayCarry))
	r := egressRound{snapshot: s, conflicts: map[cluster.Owner][]assign.Conflict{}, hosts: map[cluster.Owner]string{}}
	if !s.PodsUnread {
		for _, c := range g.conflicts.Of(s) {
			r.conflicts[c.Younger] = append(r.conflicts[c.Younger], c)
		}
	}
	effective := g.withWritten(s)
	decisions := assign.Addresses(effective, assign.Observed{Unreachable: g.prober.Unreachable()})
	g.addresses.recordDecisions(time.Now(), effective.EgressIPs, decisions)
	for i, d := range decisions {
		g.recordElected(d)
		shown := s.EgressIPs[i] // d.EgressIP may have a status that the watch does not show yet
		switch {
		case shown.OnlyAnnounced():
			g.reportRefused(&r, d, "status.loadBalancer.ingress")
			g.announced[shown.Owner] = statusChange{e: shown, items: d.Items}
		case shown.Service != nil:
			g.reconcileService(&r, d, shown)
		default:
			g.reconcileEgressIP(&r, d, shown)
		}
	}
	again := g.write(ctx, r.changes)
	g.addresses.recordWritten(time.Now(), g.withWritten(s).EgressIPs, func(took time.Duration) {
		g.meters.Took("hairpin_controller_egress_assignment_duration_seconds", took)
	})
	return r.problems, retry.Sooner(again, g.updateLabels(ctx, s, r.hosts))
}

// reconcileService adds to a round what follows from the decision about an EgressService.
func (g *egressIPs) reconcileService(r *egressRound, d assign.Decision, shown *cluster.EgressIP) {
	g.reportRefused(r, d, "spec.nodeSelector")
	g.reportConflicts(r, shown.Owner, "metadata.name")
	host := hostOf(d)
	r.hosts[shown.Owner] = host
	if host != shown.Service.Host {
		r.changes = append(r.changes, statusChange{e: shown, items: d.Items, host: host})
	}
}

// reconcileEgressIP adds to a round what follows from the decision about an EgressIP.
func (g *egressIPs) reconcileEgressIP(r *egressRound, d assign.Decision, shown *cluster.EgressIP) {
	g.reportRefused(r, d, "spec.egressIPs")
	g.reportConflicts(r, shown.Owner, "spec.podSelector")
	if !r.snapshot.PodsUnread && selectsNothing(r.snapshot, shown) {
		g.report(r, shown.Owner, "spec.namespaceSelector", reasonNoNamespace, noNamespace)
	}
	conditions := conditionsOf(r.snapshot, d, r.conflicts[shown.Owner])
	if !slices.Equal(shown.Assigned, d.Items) || !sameConditions(shown.Conditions, conditions) {
		r.changes = append(r.changes, statusChange{e: shown, items: d.Items, conditions: conditions})
	}
}

// report adds a problem to a round, with the reason of its Event.
func (g *egressIPs) report(r *egressRound, owner cluster.Owner, field, reason, message string) {
	p := cluster.Problem{Owner: owner, Field: field, Message: message}
	g.reasons[p] = reason
	r.problems = append(r.problems, p)
}

// reportRefused reports the addresses without a node.
func (g *egressIPs) reportRefused(r *egressRound, d assign.Decision, field string) {
	for _, x := range d.Refused {
		g.report(r, d.EgressIP.Owner, field, x.Reason, x.Message)
	}
}

// reportConflicts reports the older EgressIPs that select the same pods.
func (g *egressIPs) reportConflicts(r *egressRound, owner cluster.Owner, field string) {
	for _, c := range r.conflicts[owner] {
		g.report(r, owner, field, reasonConflict, conflictText(c))
	}
}

// recordElected records the node of each address, or why there is none.
func (g *egressIPs) recordElected(a assign.Decision) {
	for _, r := range a.Refused {
		g.electedNodes[r.Address] = electedNode{message: r.Message, onlyAnnounced: a.EgressIP.OnlyAnnounced()}
	}
	for _, x := range a.Items {
		g.electedNodes[x.Address] = electedNode{node: x.Node, onlyAnnounced: a.EgressIP.OnlyAnnounced()}
	}
}

// withWritten replaces each status that was written, and that the watch does not show yet, by the
// written one.
func (g *egressIPs) withWritten(s *cluster.Snapshot) *cluster.Snapshot {
	out := *s
	out.EgressIPs = slices.Clone(s.EgressIPs)
	present := map[cluster.Owner]bool{}
	for i, e := range s.EgressIPs {
		present[e.Owner] = true
		w, ok := g.written[e.Owner]
		if !ok {
			continue
		}
		if w.uid != e.UID || !slices.Equal(w.seen, e.Assigned) {
			delete(g.written, e.Owner)
			continue
		}
		with := *e
		with.Assigned = w.items
		out.EgressIPs[i] = &with
	}
	maps.DeleteFunc(g.written, func(o cluster.Owner, _ writtenStatus) bool { return !present[o] })
	return &out
}

// noNamespace is the message about an EgressIP that has no effect.
const noNamespace = "no namespace has the labels of spec.namespaceSelector: the EgressIP has no effect"

// selectsNothing reports whether an EgressIP selects no namespace.
func selectsNothing(s *cluster.Snapshot, e *cluster.EgressIP) bool {
	return !slices.ContainsFunc(s.Namespaces, func(n *cluster.Namespace) bool { return e.Namespaces.Matches(n.Labels) })
}

func conflictText(r assign.Conflict) string {
	if r.Pods == 1 {
		return fmt.Sprintf("%s has %s, which this one selects, too", r.Older, r.Example)
	}
	return fmt.Sprintf("%s has %d pods that this one selects, too, such as %s", r.Older, r.Pods, r.Example)
}

// conditionsOf returns the desired conditions of an EgressIP. Until Pods are read, it keeps the
// condition about Pods.
func conditionsOf(s *cluster.Snapshot, a assign.Decision, conflicts []assign.Conflict) []metav1.Condition {
	e := a.EgressIP
	assigned := metav1.Condition{Type: v1.ConditionAssigned, Status: metav1.ConditionTrue, Reason: "Assigned",
		Message: "every address has a node"}
	var why []string
	for _, p := range s.Problems {
		if p.Owner == e.Owner && strings.HasPrefix(p.Field, "spec.egressIPs") {
			why = append(why, p.Message)
			assigned.Reason = reasonInvalidEgress
		}
	}
	for _, r := range a.Refused {
		why = append(why, r.Message)
		assigned.Reason = r.Reason
	}
	if len(why) > 0 {
		assigned.Status, assigned.Message = metav1.ConditionFalse, joinFirst(why)
	}
	list := slices.Clone(e.Conditions)
	set := func(c metav1.Condition) {
		c.ObservedGeneration = e.Generation
		meta.SetStatusCondition(&list, c)
	}
	set(assigned)
	if s.PodsUnread {
		return list
	}
	selects := metav1.Condition{Type: v1.ConditionSelects, Status: metav1.ConditionTrue, Reason: "Selected",
		Message: "no older EgressIP selects the same pods"}
	if selectsNothing(s, e) {
		selects.Status, selects.Reason, selects.Message = metav1.ConditionFalse, reasonNoNamespace, noNamespace
	}
	if len(conflicts) > 0 {
		var texts []string
		for _, r := range conflicts {
			texts = append(texts, conflictText(r))
		}
		selects.Status, selects.Reason, selects.Message = metav1.ConditionFalse, reasonConflict, joinFirst(texts)
	}
	set(selects)
	return list
}

// joinFirst joins the first texts and the number of omitted ones: the API server limits a
// condition's message to 32 KiB.
func joinFirst(texts []string) string {
	if more := len(texts) - cluster.MaxProblems; more > 0 {
		texts = append(slices.Clone(texts[:cluster.MaxProblems]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

func sameConditions(a, b []metav1.Condition) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.Condition) bool {
		x.LastTransitionTime, y.LastTransitionTime = metav1.Time{}, metav1.Time{}
		return x == y
	})
}

// statusChange is a status to be written.
type statusChange struct {
	e          *cluster.EgressIP
	items      []cluster.Assignment
	conditions []metav1.Condition
	host       string // of an EgressService
}

// write writes statuses. It returns the time until the next try if one failed.
func (g *egressIPs) write(ctx context.Context, changes []statusChange) time.Duration {
	var mu sync.Mutex
	err := inParallel(changes, func(c statusChange) error {
		if err := g.patch(ctx, c); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if last := g.recordStatus(c); !slices.Equal(last, c.items) {
			g.meters.Count("hairpin_controller_egress_assignments_total")
			g.log.Info("assigned egress addresses", "object", c.e.Owner.String(),
				"were", assignmentsText(last), "are", assignmentsText(c.items))
		}
		return nil
	})
	return g.warned.log(ctx, g.log, "write status of EgressIPs", err)
}

// recordStatus records a status that was written, and returns the assignment before. A status is
// written again in each round until the watch shows it.
func (g *egressIPs) recordStatus(c statusChange) (last []cluster.Assignment) {
	last = c.e.Assigned
	if w, again := g.written[c.e.Owner]; again {
		last = w.items
	}
	g.written[c.e.Owner] = writtenStatus{c.e.UID, c.e.Assigned, c.items}
	return last
}

func assignmentsText(list []cluster.Assignment) string {
	var words []string
	for _, a := range list {
		words = append(words, a.Address.String()+" on "+a.Node)
	}
	return cluster.Truncate(strings.Join(words, ", "), 1024)
}

// patch writes the status of an EgressService or an EgressIP. Older definitions of EgressIPs in
// OVN-Kubernetes have no status subresource; there, patch writes the object itself.
func (g *egressIPs) patch(ctx context.Context, c statusChange) error {
	if c.e.Service != nil {
		return patchStatus(ctx, g.client, c.e.Owner, c.e.UID, types.MergePatchType,
			v1.EgressServiceStatus{Host: c.host}, watch.EgressServicePath(c.e.Owner.Namespace)+"/"+c.e.Owner.Name+
				"/status")
	}
	status := v1.EgressIPStatus{Items: make([]v1.EgressIPStatusItem, 0, len(c.items)), Conditions: c.conditions}
	for _, a := range c.items {
		status.Items = append(status.Items, v1.EgressIPStatusItem{Node: a.Node, EgressIP: a.Address.String()})
	}
	path := watch.EgressIPPath() + "/" + c.e.Owner.Name
	return patchStatus(ctx, g.client, c.e.Owner, c.e.UID, types.MergePatchType, status, path+"/status", path)
}

// patchStatus writes the status of an object, at the first of the paths that is found. The UID
// prevents a write to another object of the same name.
func patchStatus(ctx context.Context, client *kubeapi.Client, owner cluster.Owner, uid string, kind types.PatchType,
	status any, paths ...string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}, "status": status})
	if err != nil {
		return fmt.Errorf("%s: %w", owner, err)
	}
	for _, p := range paths {
		err = client.Core.Patch(kind).AbsPath(p).SetHeader("Accept", "application/json").
			Param("fieldManager", "hairpin").Body(body).Do(ctx).Error()
		if !apierrors.IsNotFound(err) {
			break
		}
	}
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it was deleted or replaced: the watch will show it
	}
	return fmt.Errorf("%s: %w", owner, err)
}

// lastWarning is the last error of a write.
type lastWarning struct{ retry.LastError }

// log logs the error of a write, and returns the time until the next try; 0 if there is none.
func (w *lastWarning) log(ctx context.Context, log *slog.Logger, what string, err error) time.Duration {
	if ctx.Err() != nil {
		err = nil
	}
	if w.Warn(log, what, err); err == nil {
		return 0
	}
	return retry.Last
}
