package kube

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hairpin/api/clusternetworkpolicy"
	v1 "hairpin/api/v1"
	"hairpin/api/v1alpha1"
	"hairpin/cluster"
	"hairpin/kubeapi"
	"hairpin/report"
	"hairpin/retry"
)

// Grace is how long a problem must last before it is reported: a slice may arrive a moment before
// its Service.
const Grace = 2 * time.Second

// maxMessage is the maximum length of an Event's message in bytes: the API server rejects longer
// ones (k8s.io/api/events/v1, note).
const maxMessage = 1024

// ReasonProblem is the reason of the Events on objects that have a problem.
const ReasonProblem = "HairpinProblem"

// Events reports problems as Events on their objects, and in the log. It reports a problem when it
// has lasted for Grace, and again only if it ended and came back.
type Events struct {
	log      *slog.Logger
	events   *recorder                     // nil without an API
	current  []cluster.Problem             // the last ones passed to Report
	since    map[cluster.Problem]time.Time // of those in current that are not reported yet
	reported map[cluster.Problem]bool
	Reason   func(cluster.Problem) string // of the Event
}

// NewEvents returns Events of a component. client is nil without an API.
func NewEvents(client *kubeapi.Client, component string, log *slog.Logger) *Events {
	r := &Events{log: log, since: map[cluster.Problem]time.Time{}, reported: map[cluster.Problem]bool{},
		Reason: func(cluster.Problem) string { return ReasonProblem }}
	if client != nil {
		r.events = newRecorder(client, component, log)
	}
	return r
}

// Report takes all current problems, in a list that it may modify. It returns when it must be
// called again, 0 if not before the next change.
func (r *Events) Report(now time.Time, problems []cluster.Problem) time.Duration {
	problems = cluster.SortProblems(problems)
	if !slices.Equal(problems, r.current) {
		r.change(now, problems)
	}
	var again time.Duration
	for p, since := range r.since {
		if wait := since.Add(Grace).Sub(now); wait > 0 {
			again = retry.Sooner(again, wait)
			continue
		}
		delete(r.since, p)
		r.reported[p] = true
		r.publish(p)
	}
	return again
}

// change records new problems, and forgets those that have ended.
func (r *Events) change(now time.Time, problems []cluster.Problem) {
	r.current = slices.Clone(problems)
	present := make(map[cluster.Problem]bool, len(problems))
	for _, p := range problems {
		present[p] = true
		if _, waits := r.since[p]; !waits && !r.reported[p] {
			r.since[p] = now
		}
	}
	maps.DeleteFunc(r.since, func(p cluster.Problem, _ time.Time) bool { return !present[p] })
	maps.DeleteFunc(r.reported, func(p cluster.Problem, _ bool) bool { return !present[p] })
}

// publish logs a problem, and writes its Event.
func (r *Events) publish(p cluster.Problem) {
	r.log.Warn("problem", "object", p.Owner.String(), "field", p.Field, "message", p.Message)
	if r.events == nil {
		return
	}
	object := corev1.ObjectReference{APIVersion: "v1", Kind: p.Owner.Kind, Namespace: p.Owner.Namespace,
		Name: p.Owner.Name}
	switch p.Owner.Kind {
	case "EndpointSlice":
		object.APIVersion = "discovery.k8s.io/v1"
	case "EgressIP", "EgressService":
		object.APIVersion = v1.GroupVersion().String()
	case "LoadBalancerPool", "BGPAdvertisement":
		object.APIVersion = v1alpha1.GroupVersion().String()
	case "NetworkPolicy":
		object.APIVersion = "networking.k8s.io/v1"
	case "ClusterNetworkPolicy":
		object.APIVersion = clusternetworkpolicy.Versions()[0].String()
	case "File":
		return
	}
	message := p.Message
	if p.Field != "" {
		message = p.Field + ": " + message
	}
	r.events.record(event{object, r.Reason(p)}, cluster.Truncate(report.Plain(message, "\n"), maxMessage))
}

// Stop ends the writing of Events.
func (r *Events) Stop() {
	if r.events != nil {
		r.events.end()
	}
}
