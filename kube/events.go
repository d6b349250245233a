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

// Grace is how long a problem must last before it is reported: an EndpointSlice may arrive a moment
// before its Service.
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
	recorder *recorder                     // nil without an API
	current  []cluster.Problem             // the last ones passed to Report
	since    map[cluster.Problem]time.Time // of those in current that are not reported yet
	reported map[cluster.Problem]bool
	// Reason returns the reason of a problem's Event. It can be replaced before the first Report.
	Reason func(cluster.Problem) string
}

// NewEvents returns Events of a component. client is nil without an API.
func NewEvents(client *kubeapi.Client, component string, log *slog.Logger) *Events {
	e := &Events{log: log, since: map[cluster.Problem]time.Time{}, reported: map[cluster.Problem]bool{},
		Reason: func(cluster.Problem) string { return ReasonProblem }}
	if client != nil {
		e.recorder = newRecorder(client, component, log)
	}
	return e
}

// Report takes all current problems, in a list that it may modify. It returns when it must be
// called again, 0 if not before the next change.
func (e *Events) Report(now time.Time, problems []cluster.Problem) time.Duration {
	problems = cluster.SortProblems(problems)
	if !slices.Equal(problems, e.current) {
		e.change(now, problems)
	}
	var again time.Duration
	for p, since := range e.since {
		if wait := since.Add(Grace).Sub(now); wait > 0 {
			again = retry.Sooner(again, wait)
			continue
		}
		delete(e.since, p)
		e.reported[p] = true
		e.publish(p)
	}
	return again
}

// change records new problems, and forgets those that have ended.
func (e *Events) change(now time.Time, problems []cluster.Problem) {
	e.current = slices.Clone(problems)
	present := make(map[cluster.Problem]bool, len(problems))
	for _, p := range problems {
		present[p] = true
		if _, waits := e.since[p]; !waits && !e.reported[p] {
			e.since[p] = now
		}
	}
	maps.DeleteFunc(e.since, func(p cluster.Problem, _ time.Time) bool { return !present[p] })
	maps.DeleteFunc(e.reported, func(p cluster.Problem, _ bool) bool { return !present[p] })
}

// publish logs a problem, and writes its Event.
func (e *Events) publish(p cluster.Problem) {
	e.log.Warn("problem", "object", p.Owner.String(), "field", p.Field, "message", p.Message)
	if e.recorder == nil || p.Owner.Kind == "File" { // no object of the API
		return
	}
	object := corev1.ObjectReference{APIVersion: apiVersion(p.Owner.Kind), Kind: p.Owner.Kind,
		Namespace: p.Owner.Namespace, Name: p.Owner.Name}
	message := p.Message
	if p.Field != "" {
		message = p.Field + ": " + message
	}
	e.recorder.record(eventKey{object, e.Reason(p)}, cluster.Truncate(report.Plain(message, "\n"), maxMessage))
}

// apiVersion returns the API version of a kind that has Events.
func apiVersion(kind string) string {
	switch kind {
	case "EndpointSlice":
		return "discovery.k8s.io/v1"
	case "EgressIP", "EgressService":
		return v1.GroupVersion().String()
	case "LoadBalancerPool", "BGPAdvertisement":
		return v1alpha1.GroupVersion().String()
	case "NetworkPolicy":
		return "networking.k8s.io/v1"
	case "ClusterNetworkPolicy":
		return clusternetworkpolicy.Versions()[0].String()
	}
	return "v1"
}

// Stop ends the goroutine that writes Events; queued ones are lost.
func (e *Events) Stop() {
	if e.recorder != nil {
		e.recorder.end()
	}
}
