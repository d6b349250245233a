package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hairpin/api/frrk8s"
	"hairpin/api/v1alpha1"
	"hairpin/cluster"
	"hairpin/plan/bgp"
	"hairpin/retry"
	"hairpin/watch"
)

// announcements announces prefixes by BGP for the leader: it writes FRRConfigurations, and the
// status of BGPAdvertisements.
type announcements struct {
	egress   *egressIPs
	input    *cluster.Snapshot // of the last plan
	wanted   []*frrk8s.FRRConfiguration
	results  []bgp.Result
	written  map[cluster.Owner]writtenConfiguration
	statuses map[cluster.Owner]writtenAdvertisement
	warned   lastWarning
	// latest has the status of each BGPAdvertisement after the last round, by name.
	latest map[string]v1alpha1.BGPAdvertisementStatus

	mu sync.Mutex // of written and statuses, while several are written
}

// writtenConfiguration is the last write or deletion of an FRRConfiguration, which the watch may
// not show until then.
type writtenConfiguration struct {
	wanted *frrk8s.FRRConfiguration // nil: it was deleted
	stored *frrk8s.FRRConfiguration // with default values of the API server; nil without a success
	until  time.Time                // with an error: of the next try
	err    error                    // why it was not written or deleted
}

// isFor reports whether the last write was of this FRRConfiguration.
func (w *writtenConfiguration) isFor(c *frrk8s.FRRConfiguration) bool {
	return w.wanted != nil && (w.wanted == c || sameConfiguration(w.wanted, c))
}

// writtenAdvertisement is the status of a BGPAdvertisement.
type writtenAdvertisement = pendingStatus[*cluster.Advertisement, v1alpha1.BGPAdvertisementStatus]

func newAnnouncements(g *egressIPs) *announcements {
	return &announcements{egress: g, written: map[cluster.Owner]writtenConfiguration{},
		statuses: map[cluster.Owner]writtenAdvertisement{}}
}

// round writes what differs. It runs after the round of egressIPs. It returns a problem for each
// BGPAdvertisement with prefixes that no node announces, and the time until the next call.
func (b *announcements) round(ctx context.Context, s *cluster.Snapshot,
	now time.Time) ([]cluster.Problem, time.Duration) {
	b.plan(s)
	_ = writeAll(b.changes(ctx, s, now)) // b.written has the errors
	again, errs := b.failures(now)
	maps.DeleteFunc(b.statuses, func(o cluster.Owner, _ writtenAdvertisement) bool {
		return !slices.ContainsFunc(b.results, func(r bgp.Result) bool { return r.Advertisement.Owner == o })
	})
	var problems []cluster.Problem
	var changes []func() error
	b.latest = map[string]v1alpha1.BGPAdvertisementStatus{} // not cleared: metrics may read the previous one
	for _, r := range b.results {
		status, problem := b.statusOf(r)
		b.latest[r.Advertisement.Owner.Name] = status
		if problem.Message != "" {
			problems = append(problems, problem)
		}
		a := r.Advertisement
		w := b.statuses[a.Owner]
		if sameAdvertisement(w.newest(a, &a.Status, now), &status) {
			continue
		}
		changes = append(changes, func() error { return b.writeStatus(ctx, a, status, now) })
	}
	err := writeAll(changes)
	b.warned.log(ctx, b.egress.log, "announce by BGP", errors.Join(errs, err))
	if err != nil {
		again = retry.Sooner(again, retry.Last)
	}
	return problems, again
}

// failures returns the errors of FRRConfigurations that were not written, and the time until the
// next try.
func (b *announcements) failures(now time.Time) (again time.Duration, err error) {
	for _, o := range slices.SortedFunc(maps.Keys(b.written), cluster.Owner.Compare) {
		if w := b.written[o]; w.err != nil {
			err = errors.Join(err, w.err)
			again = retry.Sooner(again, max(w.until.Sub(now), time.Millisecond))
		}
	}
	return again, err
}

// plan plans again if an input of the plan has changed.
func (b *announcements) plan(s *cluster.Snapshot) {
	effective := b.egress.withWritten(s)
	if x := b.input; x == nil || !slices.Equal(x.Nodes, effective.Nodes) ||
		!slices.Equal(x.EgressIPs, effective.EgressIPs) || !slices.Equal(x.Pools, effective.Pools) ||
		!slices.Equal(x.Advertisements, effective.Advertisements) ||
		!slices.Equal(x.FRRConfigurations, effective.FRRConfigurations) {
		b.wanted, b.results = bgp.Plan(effective)
	}
	b.input = effective
}

// changes returns the writes after which the FRRConfigurations are as wanted.
func (b *announcements) changes(ctx context.Context, s *cluster.Snapshot, now time.Time) (list []func() error) {
	exists := map[cluster.Owner]*frrk8s.FRRConfiguration{}
	for _, c := range s.FRRConfigurations {
		if c.Generated() {
			exists[c.Owner] = c.Object
		}
	}
	wanted := map[cluster.Owner]bool{}
	for _, c := range b.wanted {
		owner := cluster.FRRConfigurationOwner(c)
		wanted[owner] = true
		w := b.written[owner]
		switch {
		case exists[owner] != nil && sameConfiguration(exists[owner], c):
			delete(b.written, owner)
		case exists[owner] != nil && w.isFor(c) && w.stored != nil && sameConfiguration(exists[owner], w.stored):
			// It is as written: the API server added default values.
		case w.isFor(c) && now.Before(w.until):
			// The watch does not show it yet, or it was rejected a moment ago.
		default:
			list = append(list, func() error { return b.writeConfiguration(ctx, owner, c, now) })
		}
	}
	for owner, c := range exists {
		w := b.written[owner]
		deleted := w.wanted == nil && now.Before(w.until) // or that failed a moment ago
		if !wanted[owner] && !deleted {
			list = append(list, func() error { return b.deleteConfiguration(ctx, owner, c, now) })
		}
	}
	maps.DeleteFunc(b.written,
		func(o cluster.Owner, _ writtenConfiguration) bool { return !wanted[o] && exists[o] == nil })
	return list
}

func sameConfiguration(a, b *frrk8s.FRRConfiguration) bool {
	return reflect.DeepEqual(a.Spec, b.Spec) && reflect.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}

// rejectedRetry is the time until an FRRConfiguration that the API server rejected is written
// again.
const rejectedRetry = 10 * time.Second

// writeConfiguration creates an FRRConfiguration, or replaces the fields that Hairpin owns, by
// server-side apply.
func (b *announcements) writeConfiguration(ctx context.Context, owner cluster.Owner, c *frrk8s.FRRConfiguration,
	now time.Time) error {
	text, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("%s: %w", owner, err)
	}
	text, err = b.egress.client.Core.Patch(types.ApplyPatchType).
		AbsPath(watch.FRRConfigurationPath(c.Namespace)+"/"+c.Name).SetHeader("Accept", "application/json").
		Param("fieldManager", "hairpin").Param("force", "true").Body(text).DoRaw(ctx)
	w := writtenConfiguration{wanted: c, stored: &frrk8s.FRRConfiguration{}, until: now.Add(watchLag)}
	if err == nil {
		err = json.Unmarshal(text, w.stored)
	}
	if err != nil {
		w = writtenConfiguration{wanted: c, until: now.Add(rejectedRetry), err: fmt.Errorf("%s: %w", owner, err)}
	}
	return b.record(owner, w, "wrote FRRConfiguration")
}

// record records the result of a write, and logs a success.
func (b *announcements) record(owner cluster.Owner, w writtenConfiguration, message string) error {
	b.mu.Lock()
	b.written[owner] = w
	b.mu.Unlock()
	if w.err == nil {
		b.egress.log.Info(message, "object", owner.String())
	}
	return w.err
}

// deleteConfiguration deletes an FRRConfiguration that is no longer wanted.
func (b *announcements) deleteConfiguration(ctx context.Context, owner cluster.Owner, c *frrk8s.FRRConfiguration,
	now time.Time) error {
	err := b.egress.client.Core.Delete().AbsPath(watch.FRRConfigurationPath(c.Namespace)+"/"+c.Name).
		SetHeader("Accept", "application/json").
		Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.UID}}).Do(ctx).Error()
	w := writtenConfiguration{until: now.Add(watchLag)}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		w = writtenConfiguration{until: now.Add(rejectedRetry), err: fmt.Errorf("%s: %w", owner, err)}
	}
	return b.record(owner, w, "deleted FRRConfiguration")
}

// reasonRejected is the reason if the API server rejects an FRRConfiguration.
const reasonRejected = "FRRConfigurationRejected"

// statusOf returns the desired status of a BGPAdvertisement, and its problem, if there is one.
func (b *announcements) statusOf(r bgp.Result) (v1alpha1.BGPAdvertisementStatus, cluster.Problem) {
	a := r.Advertisement
	for _, c := range b.wanted {
		w := b.written[cluster.FRRConfigurationOwner(c)]
		if w.err != nil && r.Reason == "" && slices.ContainsFunc(c.OwnerReferences,
			func(o metav1.OwnerReference) bool { return string(o.UID) == a.UID }) {
			r.Reason, r.Message = reasonRejected, w.err.Error()
		}
	}
	status := v1alpha1.BGPAdvertisementStatus{Nodes: int64(r.Nodes), Prefixes: int64(r.Prefixes),
		Conditions: slices.Clone(a.Status.Conditions)}
	c := metav1.Condition{Type: v1alpha1.ConditionAdvertised, Status: metav1.ConditionTrue, Reason: "Advertised",
		Message: "all prefixes are in FRRConfigurations", ObservedGeneration: a.Generation}
	var p cluster.Problem
	if r.Reason != "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, r.Reason, r.Message
	}
	if r.Reason != "" && r.Reason != bgp.ReasonInvalid { // the parser has reported these
		p = cluster.Problem{Owner: a.Owner, Field: "spec.frrConfigurationSelector", Message: r.Message}
		b.egress.reasons[p] = r.Reason
	}
	meta.SetStatusCondition(&status.Conditions, c)
	return status, p
}

func sameAdvertisement(a, b *v1alpha1.BGPAdvertisementStatus) bool {
	return a.Nodes == b.Nodes && a.Prefixes == b.Prefixes && sameConditions(a.Conditions, b.Conditions)
}

// writeStatus writes the status of a BGPAdvertisement.
func (b *announcements) writeStatus(ctx context.Context, a *cluster.Advertisement,
	status v1alpha1.BGPAdvertisementStatus, now time.Time) error {
	if err := patchStatus(ctx, b.egress.client, a.Owner, a.UID, types.MergePatchType, status,
		watch.AdvertisementPath()+"/"+a.Owner.Name+"/status"); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.statuses[a.Owner] = writtenAdvertisement{a, status, now.Add(watchLag)}
	return nil
}
