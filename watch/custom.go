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
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"hairpin/api/clusternetworkpolicy"
	"hairpin/api/frrk8s"
	v1 "hairpin/api/v1"
	"hairpin/api/v1alpha1"
	"hairpin/kubeapi"
)

// absentRetry is the time between checks for a resource that the server does not have.
const absentRetry = 10 * time.Second

// custom is a resource that is not Kubernetes' own. The client decodes only Kubernetes' own
// resources, so this file decodes the JSON. A server without the resource has no objects.
type custom struct {
	versions []schema.GroupVersion // the preferred one first; they have equal fields
	name     string
	object   func() runtime.Object
	list     func() runtime.Object
	withMeta func(m metav1.ObjectMeta) metav1.Object
}

var (
	ovnGroup  = []schema.GroupVersion{v1.GroupVersion()}
	egressIPs = custom{ovnGroup, v1.EgressIPResource, func() runtime.Object { return &v1.EgressIP{} },
		func() runtime.Object { return &v1.EgressIPList{} },
		func(m metav1.ObjectMeta) metav1.Object { return &v1.EgressIP{ObjectMeta: m} }}
	egressServices = custom{ovnGroup, v1.EgressServiceResource, func() runtime.Object { return &v1.EgressService{} },
		func() runtime.Object { return &v1.EgressServiceList{} },
		func(m metav1.ObjectMeta) metav1.Object { return &v1.EgressService{ObjectMeta: m} }}
	loadBalancerPools = custom{[]schema.GroupVersion{v1alpha1.GroupVersion()}, v1alpha1.PoolResource,
		func() runtime.Object { return &v1alpha1.LoadBalancerPool{} },
		func() runtime.Object { return &v1alpha1.LoadBalancerPoolList{} },
		func(m metav1.ObjectMeta) metav1.Object { return &v1alpha1.LoadBalancerPool{ObjectMeta: m} }}
	bgpAdvertisements = custom{[]schema.GroupVersion{v1alpha1.GroupVersion()}, v1alpha1.AdvertisementResource,
		func() runtime.Object { return &v1alpha1.BGPAdvertisement{} },
		func() runtime.Object { return &v1alpha1.BGPAdvertisementList{} },
		func(m metav1.ObjectMeta) metav1.Object { return &v1alpha1.BGPAdvertisement{ObjectMeta: m} }}
	frrConfigurations = custom{[]schema.GroupVersion{frrk8s.GroupVersion()}, frrk8s.Resource,
		func() runtime.Object { return &frrk8s.FRRConfiguration{} },
		func() runtime.Object { return &frrk8s.FRRConfigurationList{} },
		func(m metav1.ObjectMeta) metav1.Object { return &frrk8s.FRRConfiguration{ObjectMeta: m} }}
	clusterNetworkPolicies = custom{clusternetworkpolicy.Versions(), clusternetworkpolicy.Resource,
		func() runtime.Object { return &clusternetworkpolicy.ClusterNetworkPolicy{} },
		func() runtime.Object { return &clusternetworkpolicy.ClusterNetworkPolicyList{} },
		func(m metav1.ObjectMeta) metav1.Object {
			return &clusternetworkpolicy.ClusterNetworkPolicy{ObjectMeta: m}
		}}
)

// EgressIPPath is the path of EgressIPs on the API server.
func EgressIPPath() string { return egressIPs.path(v1.GroupVersion()) }

// EgressServicePath is the path of the EgressServices of a namespace on the API server.
func EgressServicePath(namespace string) string {
	return "/apis/" + v1.GroupVersion().String() + "/namespaces/" + namespace + "/" + v1.EgressServiceResource
}

// PoolPath is the path of LoadBalancerPools on the API server.
func PoolPath() string { return loadBalancerPools.path(v1alpha1.GroupVersion()) }

// AdvertisementPath is the path of BGPAdvertisements on the API server.
func AdvertisementPath() string { return bgpAdvertisements.path(v1alpha1.GroupVersion()) }

// FRRConfigurationPath is the path of the FRRConfigurations of a namespace on the API server.
func FRRConfigurationPath(namespace string) string {
	return "/apis/" + frrk8s.GroupVersion().String() + "/namespaces/" + namespace + "/" + frrk8s.Resource
}

func (r *custom) path(v schema.GroupVersion) string { return "/apis/" + v.String() + "/" + r.name }

// requestServed requests the resource in the first of its versions that the server has.
func requestServed[T any](r *custom, client rest.Interface, options *metav1.ListOptions,
	do func(*rest.Request) (T, error)) (out T, err error) {
	for _, v := range r.versions {
		out, err = do(client.Get().AbsPath(r.path(v)).SetHeader("Accept", "application/json").VersionedParams(options,
			kubeapi.Parameters))
		if !apierrors.IsNotFound(err) {
			break
		}
	}
	return out, err
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

// ListPools reads all LoadBalancerPools.
func ListPools(ctx context.Context, client rest.Interface, options metav1.ListOptions) (runtime.Object, error) {
	return loadBalancerPools.all(ctx, client, options)
}

// ListClusterNetworkPolicies reads all ClusterNetworkPolicies.
func ListClusterNetworkPolicies(ctx context.Context, client rest.Interface,
	options metav1.ListOptions) (runtime.Object, error) {
	return clusterNetworkPolicies.all(ctx, client, options)
}

// ClusterNetworkPolicy reads a ClusterNetworkPolicy.
func ClusterNetworkPolicy(ctx context.Context, client rest.Interface,
	name string) (*clusternetworkpolicy.ClusterNetworkPolicy, error) {
	o := &clusternetworkpolicy.ClusterNetworkPolicy{}
	_, err := requestServed(&clusterNetworkPolicies, client, &metav1.ListOptions{},
		func(q *rest.Request) (any, error) {
			text, err := q.Suffix(name).DoRaw(ctx)
			if err == nil {
				err = json.Unmarshal(text, o)
			}
			return nil, err
		})
	if err != nil {
		return nil, fmt.Errorf("read ClusterNetworkPolicy %s: %w", name, err)
	}
	return o, nil
}

func (r *custom) all(ctx context.Context, client rest.Interface, options metav1.ListOptions) (runtime.Object, error) {
	text, err := requestServed(r, client, &options, func(q *rest.Request) ([]byte, error) { return q.DoRaw(ctx) })
	if err != nil {
		return nil, err
	}
	list := r.list()
	if err := json.Unmarshal(text, list); err != nil {
		return nil, fmt.Errorf("read %s: %w", r.name, err)
	}
	return list, nil
}

// custom returns the source of a custom resource.
func (k *kube) custom(ctx context.Context, client rest.Interface, r *custom) *source {
	from := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return r.all(ctx, client, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
			options.Watch = true
			body, err := requestServed(r, client, &options,
				func(q *rest.Request) (io.ReadCloser, error) { return q.Stream(ctx) })
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

// events reads the stream of a watch of a custom resource.
type events struct {
	body     io.ReadCloser
	decoder  *json.Decoder
	resource *custom
}

// Decode returns the next event.
func (e *events) Decode() (apiwatch.EventType, runtime.Object, error) {
	var event metav1.WatchEvent
	if err := e.decoder.Decode(&event); err != nil {
		return "", nil, err
	}
	object := e.resource.object()
	if event.Type == string(apiwatch.Error) {
		object = &metav1.Status{}
	}
	if err := json.Unmarshal(event.Object.Raw, object); err != nil {
		return "", nil, fmt.Errorf("read one of %s: %w", e.resource.name, err)
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
