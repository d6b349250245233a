package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	v1 "hairpin/api/v1"
	"hairpin/kubeapi"
)

// absentRetry is the time between checks for a resource that the server does not have.
const absentRetry = 10 * time.Second

// ours is a resource of k8s.ovn.org. The client knows only Kubernetes' own types, so this file
// decodes the JSON. A server without the resource has no objects.
type ours struct {
	name     string
	object   func() runtime.Object
	list     func() runtime.Object
	withMeta func(m metav1.ObjectMeta) metav1.Object
}

var (
	egressIPs = ours{v1.Resource, func() runtime.Object { return &v1.EgressIP{} },
		func() runtime.Object { return &v1.EgressIPList{} },
		func(m metav1.ObjectMeta) metav1.Object { return &v1.EgressIP{ObjectMeta: m} }}
	egressServices = ours{v1.ServiceResource, func() runtime.Object { return &v1.EgressService{} },
		func() runtime.Object { return &v1.EgressServiceList{} },
		func(m metav1.ObjectMeta) metav1.Object { return &v1.EgressService{ObjectMeta: m} }}
)

// EgressIPPath is the path of EgressIPs on the API server.
func EgressIPPath() string { return egressIPs.path() }

// EgressServicePath is the path of the EgressServices of a namespace on the API server.
func EgressServicePath(namespace string) string {
	return "/apis/" + v1.GroupVersion().String() + "/namespaces/" + namespace + "/" + v1.ServiceResource
}

func (r *ours) path() string { return "/apis/" + v1.GroupVersion().String() + "/" + r.name }

func (r *ours) get(client rest.Interface, options *metav1.ListOptions) *rest.Request {
	return client.Get().AbsPath(r.path()).SetHeader("Accept", "application/json").VersionedParams(options,
		kubeapi.Parameters)
}

// ListEgressIPs reads all EgressIPs.
func ListEgressIPs(ctx context.Context, client rest.Interface, options metav1.ListOptions) (runtime.Object, error) {
	return egressIPs.all(ctx, client, options)
}

// ListEgressServices reads all EgressServices.
func ListEgressServices(ctx context.Context, client rest.Interface,
	options metav1.ListOptions) (runtime.Object, error) {
	return egressServices.all(ctx, client, options)
}

func (r *ours) all(ctx context.Context, client rest.Interface, options metav1.ListOptions) (runtime.Object, error) {
	text, err := r.get(client, &options).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	list := r.list()
	if err := json.Unmarshal(text, list); err != nil {
		return nil, fmt.Errorf("read %s: %w", r.name, err)
	}
	return list, nil
}

// ours returns the source of a resource of k8s.ovn.org.
func (k *kube) ours(ctx context.Context, client rest.Interface, r *ours) *source {
	from := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return r.all(ctx, client, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
			options.Watch = true
			body, err := r.get(client, &options).Stream(ctx)
			if err != nil {
				return nil, err
			}
			return apiwatch.NewStreamWatcher(&events{body, json.NewDecoder(body), r},
				apierrors.NewClientErrorReporter(http.StatusInternalServerError, "GET", "WatchDecoding")), nil
		},
	}
	return k.source(ctx, &resourceClient{ListWatch: from, resource: r.name, reach: &k.reach, absent: r.list},
		r.withMeta)
}

// events reads the stream of a watch of such a resource.
type events struct {
	body io.ReadCloser
	from *json.Decoder
	of   *ours
}

// Decode returns the next event.
func (e *events) Decode() (apiwatch.EventType, runtime.Object, error) {
	var event metav1.WatchEvent
	if err := e.from.Decode(&event); err != nil {
		return "", nil, err
	}
	object := e.of.object()
	if event.Type == string(apiwatch.Error) {
		object = &metav1.Status{}
	}
	if err := json.Unmarshal(event.Object.Raw, object); err != nil {
		return "", nil, fmt.Errorf("read one of %s: %w", e.of.name, err)
	}
	return apiwatch.EventType(event.Type), object, nil
}

// Close ends the stream.
func (e *events) Close() { _ = e.body.Close() }

// emptyWatch returns a watch without events that ends after absentRetry.
func emptyWatch(ctx context.Context) apiwatch.Interface {
	w := apiwatch.NewFake()
	end := context.AfterFunc(ctx, w.Stop)
	time.AfterFunc(absentRetry, func() {
		end()
		w.Stop()
	})
	return w
}
