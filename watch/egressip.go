package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	v1 "hairpin/api/v1"
	"hairpin/cluster"
)

// absentRetry is how long to wait before looking again for a resource that the server does not have.
const absentRetry = 10 * time.Second

// EgressIPPath is the path of EgressIPs on the API server.
func EgressIPPath() string { return "/apis/" + v1.GroupVersion().String() + "/" + v1.Resource }

func getEgressIPs(client rest.Interface, options *metav1.ListOptions) *rest.Request {
	return client.Get().AbsPath(EgressIPPath()).SetHeader("Accept", "application/json").VersionedParams(options, scheme.ParameterCodec)
}

// ListEgressIPs reads all EgressIPs.
func ListEgressIPs(ctx context.Context, client rest.Interface, options metav1.ListOptions) (runtime.Object, error) {
	text, err := getEgressIPs(client, &options).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	list := &v1.EgressIPList{}
	if err := json.Unmarshal(text, list); err != nil {
		return nil, fmt.Errorf("read EgressIPs: %w", err)
	}
	return list, nil
}

// egressIPs adds the source of EgressIPs. The client knows Kubernetes' own types only, so this one reads their JSON. A
// server without the resource has no EgressIPs.
func (k *kube) egressIPs(ctx context.Context, client rest.Interface) {
	from := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return ListEgressIPs(ctx, client, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
			options.Watch = true
			body, err := getEgressIPs(client, &options).Stream(ctx)
			if err != nil {
				return nil, err
			}
			return apiwatch.NewStreamWatcher(&events{body, json.NewDecoder(body)},
				apierrors.NewClientErrorReporter(http.StatusInternalServerError, "GET", "WatchDecoding")), nil
		},
	}
	k.source(ctx, &resourceClient{ListWatch: from, resource: v1.Resource, reach: &k.reach, absent: func() runtime.Object { return &v1.EgressIPList{} }},
		func(m metav1.ObjectMeta) metav1.Object { return &v1.EgressIP{ObjectMeta: m} })
}

// events reads the stream of a watch of EgressIPs.
type events struct {
	body io.ReadCloser
	from *json.Decoder
}

// Decode returns the next event.
func (e *events) Decode() (apiwatch.EventType, runtime.Object, error) {
	var event metav1.WatchEvent
	if err := e.from.Decode(&event); err != nil {
		return "", nil, err
	}
	var object runtime.Object = &v1.EgressIP{}
	if event.Type == string(apiwatch.Error) {
		object = &metav1.Status{}
	}
	if err := json.Unmarshal(event.Object.Raw, object); err != nil {
		return "", nil, fmt.Errorf("read an EgressIP: %w", err)
	}
	return apiwatch.EventType(event.Type), object, nil
}

// Close ends the stream.
func (e *events) Close() { _ = e.body.Close() }

// emptyWatch is a watch without events that ends after a while.
func emptyWatch(ctx context.Context) apiwatch.Interface {
	w := apiwatch.NewFake()
	end := context.AfterFunc(ctx, w.Stop)
	time.AfterFunc(absentRetry, func() {
		end()
		w.Stop()
	})
	return w
}

// needsOtherPods reports whether Pods of other nodes matter: to a node that carries an egress address or may have to in a
// moment, because it translates their packets, and to the controller when two EgressIPs could select the same.
func needsOtherPods(s *cluster.Snapshot, node string) bool {
	if node == "" {
		return len(s.EgressIPs) > 1
	}
	if n := s.Node(node); n != nil && n.Egress.Assignable && len(s.EgressIPs) > 0 {
		return true
	}
	return slices.ContainsFunc(s.EgressIPs, func(e *cluster.EgressIP) bool {
		return slices.ContainsFunc(e.Assigned, func(a cluster.Assignment) bool { return a.Node == node })
	})
}

// otherPods selects the Pods that other nodes have. Those without a node are left out: one that gets this node later
// would vanish from here at the moment when the watch of this node's own Pods reports it.
func otherPods(node string) fields.Selector {
	scheduled := fields.OneTermNotEqualSelector(nodeName, "")
	if node == "" {
		return scheduled
	}
	return fields.AndSelectors(scheduled, fields.OneTermNotEqualSelector(nodeName, node))
}
