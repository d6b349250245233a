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
	maxRecorded   = 4096 // objects and reasons that a recorder remembers
)

// lastEventRetry is the longest pause between tries to reach the API server.
const lastEventRetry = 10 * time.Second

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
	queue     chan occurrence
	recorded  map[event]*recorded
	end       context.CancelFunc
}

// event identifies Events that differ only in their messages. The object has no UID.
type event struct {
	object corev1.ObjectReference
	reason string
}

// occurrence is an event at one time, with its message.
type occurrence struct {
	event
	message string
	at      metav1.Time
}

// recorded is what was written of an event, the last time.
type recorded struct {
	limit         *rate.Limiter
	name, message string
	count         int32
}

func newRecorder(client *kubeapi.Client, component string, log *slog.Logger) *recorder {
	ctx, end := context.WithCancel(context.Background())
	r := &recorder{client: client, component: component, log: log, queue: make(chan occurrence, maxQueued),
		recorded: map[event]*recorded{}, end: end}
	go r.run(ctx)
	return r
}

// record queues an Event.
func (r *recorder) record(e event, message string) {
	select {
	case r.queue <- occurrence{e, message, metav1.Now()}:
	default:
		r.log.Warn("dropped an Event: too many wait to be written", "object", e.object.Name, "message", message)
	}
}

// run writes Events until ctx ends.
func (r *recorder) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case o := <-r.queue:
			if last := r.last(o.event); last.limit.AllowN(o.at.Time, 1) {
				r.writeOrRetry(ctx, last, o)
			}
		}
	}
}

// last returns what was written of an event, and its limit.
func (r *recorder) last(e event) *recorded {
	if r.recorded[e] == nil {
		if len(r.recorded) >= maxRecorded {
			clear(r.recorded)
		}
		r.recorded[e] = &recorded{limit: rate.NewLimiter(rate.Every(eventInterval), eventBurst)}
	}
	return r.recorded[e]
}

// writeOrRetry retries while the API server does not answer.
func (r *recorder) writeOrRetry(ctx context.Context, last *recorded, o occurrence) {
	for p := (retry.Backoff{Max: lastEventRetry}); ctx.Err() == nil; p.Sleep(ctx) {
		err := r.write(ctx, last, o)
		if err == nil {
			return
		}
		if refused := apierrors.APIStatus(nil); errors.As(err, &refused) {
			r.log.Warn("write an Event", "object", o.object.Name, "error", err)
			return
		}
	}
}

// write increments the count of the last Event if it has the same message, or creates a new one.
func (r *recorder) write(ctx context.Context, last *recorded, o occurrence) error {
	events := r.client.Events(cmp.Or(o.object.Namespace, metav1.NamespaceDefault))
	if last.name != "" && last.message == o.message {
		patch := fmt.Appendf(nil, `{"count":%d,"lastTimestamp":%q}`, last.count+1, o.at.UTC().Format(time.RFC3339))
		_, err := events.Patch(ctx, last.name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil {
			last.count++
		}
		if !apierrors.IsNotFound(err) { // it expires after an hour
			return err
		}
	}
	o.object.UID = r.uid(ctx, &o.object)
	e, err := events.Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: o.object.Name + "."},
		InvolvedObject: o.object, Type: corev1.EventTypeWarning, Reason: o.reason, Message: o.message,
		FirstTimestamp: o.at, LastTimestamp: o.at, Count: 1,
		Source: corev1.EventSource{Component: r.component}, ReportingController: r.component,
	})
	if err == nil {
		last.name, last.message, last.count = e.Name, o.message, 1
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
