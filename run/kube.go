package run

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"

	"hairpin/cluster"
)

// kubeClient connects to the API server named in a kubeconfig, or with the service account of the pod.
func kubeClient(kubeconfig string) (kubernetes.Interface, error) {
	config, err := rest.InClusterConfig()
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("Kubernetes API: %w", err)
	}
	config.UserAgent = "hairpin"
	config.QPS, config.Burst = 50, 100
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("Kubernetes API: %w", err)
	}
	return client, nil
}

func annotationPatch(annotations map[string]string) ([]byte, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return nil, fmt.Errorf("annotations: %w", err)
	}
	return patch, nil
}

// grace is how long a problem must last before it is told: a slice may come a moment before its Service.
const grace = 2 * time.Second

// reporter tells problems where their object is: as an Event on it, and once in the log. It tells each problem when
// it has lasted for the grace time, and again only after it was gone.
type reporter struct {
	log    *slog.Logger
	events record.EventRecorder // nil without an API
	caster record.EventBroadcaster
	since  map[cluster.Problem]time.Time
	told   map[cluster.Problem]bool
}

func newReporter(client kubernetes.Interface, component string, log *slog.Logger) *reporter {
	r := &reporter{log: log, since: map[cluster.Problem]time.Time{}, told: map[cluster.Problem]bool{}}
	if client != nil {
		r.caster = record.NewBroadcaster(record.WithContext(context.Background()))
		r.caster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
		r.events = r.caster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
	}
	return r
}

// report takes all problems of now. It returns when it wants to be called again, 0 if not before the next change.
func (r *reporter) report(problems []cluster.Problem) time.Duration {
	now := time.Now()
	present := make(map[cluster.Problem]bool, len(problems))
	var again time.Duration
	for _, p := range problems {
		present[p] = true
		if _, ok := r.since[p]; !ok {
			r.since[p] = now
		}
		if wait := r.since[p].Add(grace).Sub(now); wait > 0 {
			again = max(again, wait)
		} else if !r.told[p] {
			r.told[p] = true
			r.tell(p)
		}
	}
	for p := range r.since {
		if !present[p] {
			delete(r.since, p)
			delete(r.told, p)
		}
	}
	return again
}

func (r *reporter) tell(p cluster.Problem) {
	r.log.Warn("problem", "object", p.Owner.String(), "field", p.Field, "message", p.Message)
	if r.events == nil {
		return
	}
	object := &corev1.ObjectReference{Kind: p.Owner.Kind, Namespace: p.Owner.Namespace, Name: p.Owner.Name}
	switch p.Owner.Kind {
	case "EndpointSlice":
		object.APIVersion = "discovery.k8s.io/v1"
	case "File":
		return
	default:
		object.APIVersion = "v1"
	}
	message := p.Message
	if p.Field != "" {
		message = p.Field + ": " + message
	}
	r.events.Event(object, corev1.EventTypeWarning, "HairpinProblem", message)
}

func (r *reporter) stop() {
	if r.caster != nil {
		r.caster.Shutdown()
	}
}
