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

// pendingStatus is a status S of an object O that was written. The watch may not show it yet.
type pendingStatus[O comparable, S any] struct {
	seen   O // what the watch showed at the time
	status S
	until  time.Time
}

// current reports whether the object has the wanted status, or it was written since.
func (w pendingStatus[O, S]) current(object O, has, want *S, same func(a, b *S) bool, now time.Time) bool {
	return same(has, want) || w.seen == object && same(&w.status, want) && now.Before(w.until)
}

// newest returns the object's status, or the one that was written since.
func (w pendingStatus[O, S]) newest(object O, has *S, now time.Time) *S {
	if w.seen == object && now.Before(w.until) {
		return &w.status
	}
	return has
}

// egressIPs reconciles EgressIPs for the leader: it assigns their addresses to nodes and writes
// their status.
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
	ofPools      map[cluster.Owner]statusChange // of those that are only announced: writePool writes them
	warned       lastWarning
	labelsWarned lastWarning // of updateLabels
}

// electedNode is the node that announces an address, or why none does.
type electedNode struct {
	node, message string
	onlyAnnounced bool // no pods leave with the address
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

// round assigns addresses, and writes the statuses that differ. It returns the addresses without a
// node as problems, and the time until it must be called again.
func (g *egressIPs) round(ctx context.Context, s *cluster.Snapshot) ([]cluster.Problem, time.Duration) {
	g.reasons, g.electedNodes = map[cluster.Problem]string{}, map[netip.Addr]electedNode{}
	g.ofPools = map[cluster.Owner]statusChange{}
	if len(s.EgressIPs) == 0 {
		g.prober.SetTargets(nil)
		g.addresses = newAddressMeter()
		return nil, g.updateLabels(ctx, s, nil)
	}
	g.prober.SetTargets(probe.Targets(s, s.MayCarry))
	var problems []cluster.Problem
	report := func(e *cluster.EgressIP, field, reason, message string) {
		p := cluster.Problem{Owner: e.Owner, Field: field, Message: message}
		g.reasons[p] = reason
		problems = append(problems, p)
	}
	conflicts := map[cluster.Owner][]assign.Conflict{}
	if !s.PodsUnread {
		for _, r := range g.conflicts.Of(s) {
			conflicts[r.Younger] = append(conflicts[r.Younger], r)
		}
	}
	var changes []statusChange
	hosts := map[cluster.Owner]string{}
	effective := g.withWritten(s)
	decisions := assign.Addresses(effective, assign.Rules{Unreachable: g.prober.Unreachable()})
	g.addresses.recordDecisions(time.Now(), effective.EgressIPs, decisions)
	for i, a := range decisions {
		service := a.EgressIP.Service
		g.recordElected(a)
		if a.EgressIP.OnlyAnnounced() {
			for _, r := range a.Refused {
				report(a.EgressIP, "status.loadBalancer.ingress", r.Reason, r.Message)
			}
			g.ofPools[a.EgressIP.Owner] = statusChange{e: s.EgressIPs[i], items: a.Items}
			continue
		}
		field, selectorField := "spec.egressIPs", "spec.podSelector"
		if service != nil {
			field, selectorField = "spec.nodeSelector", "metadata.name"
		}
		for _, r := range a.Refused {
			report(a.EgressIP, field, r.Reason, r.Message)
		}
		for _, r := range conflicts[a.EgressIP.Owner] {
			report(a.EgressIP, selectorField, reasonConflict, conflictText(r))
		}
		if service != nil {
			hosts[a.EgressIP.Owner] = hostOf(a)
			if hostOf(a) != service.Host {
				changes = append(changes, statusChange{e: s.EgressIPs[i], items: a.Items, host: hostOf(a)})
			}
			continue
		}
		if !s.PodsUnread && selectsNothing(s, a.EgressIP) {
			report(a.EgressIP, "spec.namespaceSelector", reasonNoNamespace, noNamespace)
		}
		conditions := conditionsOf(s, a, conflicts[a.EgressIP.Owner])
		if e := s.EgressIPs[i]; !slices.Equal(e.Assigned, a.Items) || !sameConditions(e.Conditions, conditions) {
			changes = append(changes, statusChange{e: e, items: a.Items, conditions: conditions})
		}
	}
	again := g.write(ctx, changes)
	g.addresses.recordWritten(time.Now(), g.withWritten(s).EgressIPs, func(took time.Duration) {
		g.meters.Took("hairpin_controller_egress_assignment_duration_seconds", took)
	})
	return problems, retry.Sooner(again, g.updateLabels(ctx, s, hosts))
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
	err := write(changes, func(c statusChange) error {
		if err := g.patch(ctx, c); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		g.written[c.e.Owner] = writtenStatus{c.e.UID, c.e.Assigned, c.items}
		if !slices.Equal(c.e.Assigned, c.items) {
			g.meters.Count("hairpin_controller_egress_assignments_total")
			g.log.Info("assigned egress addresses", "object", c.e.Owner.String(),
				"were", assignmentsText(c.e.Assigned), "are", assignmentsText(c.items))
		}
		return nil
	})
	return g.warned.log(ctx, g.log, "write status of EgressIPs", err)
}

func assignmentsText(list []cluster.Assignment) string {
	var words []string
	for _, a := range list {
		words = append(words, a.Address.String()+" on "+a.Node)
	}
	return cluster.Truncate(strings.Join(words, ", "), 1024)
}

// patch writes the status of an EgressIP. Older definitions of OVN-Kubernetes have no status
// subresource; there, patch writes the object itself.
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

// lastWarning is the last error that was logged. The same one is logged once.
type lastWarning string

// log logs the error of a write, and returns the time until the next try; 0 if there is none.
func (w *lastWarning) log(ctx context.Context, log *slog.Logger, what string, err error) time.Duration {
	if err == nil || ctx.Err() != nil {
		*w = ""
		return 0
	}
	if text := err.Error(); text != string(*w) {
		log.Warn(what, "error", text)
		*w = lastWarning(text)
	}
	return retry.Last
}
