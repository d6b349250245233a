package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hairpin/kubeapi"
	"hairpin/retry"
	"hairpin/watch"
)

// Limits of a recorder, for each object and reason, as client-go's: a burst, and then one every few
// minutes.
const (
	eventBurst    = 25
	eventInterval = 5 * time.Minute
	maxQueued     = 1000 // Events that wait to be written
	maxHistories  = 4096 // objects and reasons that a recorder remembers
)

// maxEventPause is the longest pause between tries to reach the API server.
const maxEventPause = 10 * time.Second

// lookupTimeout bounds how long queued Events wait for a lookup.
const lookupTimeout = 5 * time.Second

// recorder writes Events of type Warning, one after the other, in a goroutine of its own. If an
// Event has the same message as the last one of its object and reason, the recorder increments the
// count of that one. client-go's recorder would link descriptions of the API (OpenAPI), which are
// 3 MB of each process.
type recorder struct {
	client    *kubeapi.Client
	component string
	log       *slog.Logger
	queue     chan event
	histories map[eventKey]*history
	end       context.CancelFunc
}

// eventKey identifies Events that differ only in their messages. The object has no UID.
type eventKey struct {
	object corev1.ObjectReference
	reason string
}

// event is an Event to be written.
type event struct {
	eventKey
	message string
	at      metav1.Time
}

// history is what a recorder remembers of the Events with one key: their limit, and the last one
// that was written.
type history struct {
	limit         *rate.Limiter
	name, message string // name is empty before the first one
	count         int32
}

func newRecorder(client *kubeapi.Client, component string, log *slog.Logger) *recorder {
	ctx, end := context.WithCancel(context.Background())
	r := &recorder{client: client, component: component, log: log, queue: make(chan event, maxQueued),
		histories: map[eventKey]*history{}, end: end}
	go r.run(ctx)
	return r
}

// record queues an Event.
func (r *recorder) record(k eventKey, message string) {
	select {
	case r.queue <- event{k, message, metav1.Now()}:
	default:
		r.log.Warn("dropped an Event: too many wait to be written", "object", k.object.Name, "message", message)
	}
}

// run writes Events until ctx ends.
func (r *recorder) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case e := <-r.queue:
			if last := r.history(e.eventKey); last.limit.AllowN(e.at.Time, 1) {
				r.writeOrRetry(ctx, last, e)
			}
		}
	}
}

// history returns the history of a key, and makes it if there is none. If there are too many, it
// forgets all: the next Event of each key is a new one, with a new limit.
func (r *recorder) history(k eventKey) *history {
	if r.histories[k] == nil {
		if len(r.histories) >= maxHistories {
			clear(r.histories)
		}
		r.histories[k] = &history{limit: rate.NewLimiter(rate.Every(eventInterval), eventBurst)}
	}
	return r.histories[k]
}

// writeOrRetry retries while the API server does not answer.
func (r *recorder) writeOrRetry(ctx context.Context, last *history, e event) {
	for p := (retry.Backoff{Max: maxEventPause}); ctx.Err() == nil; p.Sleep(ctx) {
		err := r.write(ctx, last, e)
		if err == nil {
			return
		}
		if errors.As(err, new(apierrors.APIStatus)) { // the server's answer
			r.log.Warn("write an Event", "object", e.object.Name, "error", err)
			return
		}
	}
}

// write increments the count of the last Event if it has the same message, or creates a new one.
func (r *recorder) write(ctx context.Context, last *history, e event) error {
	events := r.client.Events(cmp.Or(e.object.Namespace, metav1.NamespaceDefault))
	if last.name != "" && last.message == e.message {
		patch := fmt.Appendf(nil, `{"count":%d,"lastTimestamp":%q}`, last.count+1, e.at.UTC().Format(time.RFC3339))
		_, err := events.Patch(ctx, last.name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil {
			last.count++
		}
		if !apierrors.IsNotFound(err) { // it expires after an hour
			return err
		}
	}
	e.object.UID = r.uid(ctx, &e.object)
	created, err := events.Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: e.object.Name + "."},
		InvolvedObject: e.object, Type: corev1.EventTypeWarning, Reason: e.reason, Message: e.message,
		FirstTimestamp: e.at, LastTimestamp: e.at, Count: 1,
		Source: corev1.EventSource{Component: r.component}, ReportingController: r.component,
	})
	if err == nil {
		last.name, last.message, last.count = created.Name, e.message, 1
	}
	return err
}

// uid looks up the UID of an object, which a Problem does not have: `kubectl describe` finds an
// object's Events by it. If that fails, the Event has no UID.
func (r *recorder) uid(ctx context.Context, o *corev1.ObjectReference) types.UID {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var m metav1.Object
	var err error
	switch o.Kind {
	case "Node":
		m, err = r.client.Nodes().Get(ctx, o.Name)
	case "Pod":
		m, err = r.client.Pods(o.Namespace).Get(ctx, o.Name)
	case "Service":
		m, err = r.client.Services(o.Namespace).Get(ctx, o.Name)
	case "EndpointSlice":
		m, err = r.client.EndpointSlices(o.Namespace).Get(ctx, o.Name)
	case "NetworkPolicy":
		m, err = r.client.NetworkPolicies(o.Namespace).Get(ctx, o.Name)
	case "ClusterNetworkPolicy":
		m, err = watch.ClusterNetworkPolicy(ctx, r.client.Core, o.Name)
	case "EgressIP":
		m, err = egressIP(ctx, r.client, o.Name)
	case "EgressService":
		m, err = egressService(ctx, r.client, o.Namespace, o.Name)
	case "LoadBalancerPool":
		m, err = pool(ctx, r.client, o.Name)
	case "BGPAdvertisement":
		m, err = advertisement(ctx, r.client, o.Name)
	}
	if err != nil || m == nil {
		return ""
	}
	return m.GetUID()
}
