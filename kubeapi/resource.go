package kubeapi

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// Object is a pointer to an object with a name.
type Object interface {
	runtime.Object
	metav1.Object
}

// Resource accesses the objects of type O in the API, with lists of type L.
type Resource[O Object, L runtime.Object] struct {
	api             rest.Interface
	name, namespace string // namespace: empty = all, or cluster-scoped
	object          func() O
	list            func() L
}

// resource returns a Resource for the object type O and the list type L, of which P and Q are the
// pointers.
func resource[O, L any, P interface {
	*O
	Object
}, Q interface {
	*L
	runtime.Object
}](api rest.Interface, name, namespace string) Resource[P, Q] {
	return Resource[P, Q]{api, name, namespace, func() P { return new(O) }, func() Q { return new(L) }}
}

// Nodes accesses the cluster's Nodes.
func (c *Client) Nodes() Resource[*corev1.Node, *corev1.NodeList] {
	return resource[corev1.Node, corev1.NodeList](c.Core, "nodes", "")
}

// Namespaces accesses the cluster's Namespaces.
func (c *Client) Namespaces() Resource[*corev1.Namespace, *corev1.NamespaceList] {
	return resource[corev1.Namespace, corev1.NamespaceList](c.Core, "namespaces", "")
}

// Pods accesses the Pods of a namespace, or of all.
func (c *Client) Pods(namespace string) Resource[*corev1.Pod, *corev1.PodList] {
	return resource[corev1.Pod, corev1.PodList](c.Core, "pods", namespace)
}

// Services accesses the Services of a namespace, or of all.
func (c *Client) Services(namespace string) Resource[*corev1.Service, *corev1.ServiceList] {
	return resource[corev1.Service, corev1.ServiceList](c.Core, "services", namespace)
}

// Events accesses the Events of a namespace.
func (c *Client) Events(namespace string) Resource[*corev1.Event, *corev1.EventList] {
	return resource[corev1.Event, corev1.EventList](c.Core, "events", namespace)
}

// EndpointSlices accesses the EndpointSlices of a namespace, or of all.
func (c *Client) EndpointSlices(namespace string) Resource[*discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList] {
	return resource[discoveryv1.EndpointSlice, discoveryv1.EndpointSliceList](c.Discovery, "endpointslices", namespace)
}

// NetworkPolicies accesses the NetworkPolicies of a namespace, or of all.
func (c *Client) NetworkPolicies(namespace string) Resource[*networkingv1.NetworkPolicy,
	*networkingv1.NetworkPolicyList] {
	return resource[networkingv1.NetworkPolicy, networkingv1.NetworkPolicyList](c.Networking, "networkpolicies",
		namespace)
}

// ServiceCIDRs accesses the cluster's ServiceCIDRs. A server before Kubernetes 1.33 does not know
// them.
func (c *Client) ServiceCIDRs() Resource[*networkingv1.ServiceCIDR, *networkingv1.ServiceCIDRList] {
	return resource[networkingv1.ServiceCIDR, networkingv1.ServiceCIDRList](c.Networking, "servicecidrs", "")
}

// Leases accesses the Leases of a namespace.
func (c *Client) Leases(namespace string) Resource[*coordinationv1.Lease, *coordinationv1.LeaseList] {
	return resource[coordinationv1.Lease, coordinationv1.LeaseList](c.Coordination, "leases", namespace)
}

// request adds the resource to a request. If the configuration names no encoding, it is protobuf.
func (r Resource[O, L]) request(q *rest.Request) *rest.Request {
	return q.UseProtobufAsDefault().NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.name)
}

// Get reads an object.
func (r Resource[O, L]) Get(ctx context.Context, name string) (O, error) {
	o := r.object()
	return o, r.request(r.api.Get()).Name(name).Do(ctx).Into(o)
}

// List reads the objects that the options select.
func (r Resource[O, L]) List(ctx context.Context, options metav1.ListOptions) (L, error) {
	l := r.list()
	return l, r.request(r.api.Get()).VersionedParams(&options, Parameters).Do(ctx).Into(l)
}

// Create creates an object and returns the server's version of it.
func (r Resource[O, L]) Create(ctx context.Context, object O) (O, error) {
	o := r.object()
	return o, r.request(r.api.Post()).Body(object).Do(ctx).Into(o)
}

// Update replaces an object and returns the server's version of it.
func (r Resource[O, L]) Update(ctx context.Context, object O) (O, error) {
	o := r.object()
	return o, r.request(r.api.Put()).Name(object.GetName()).Body(object).Do(ctx).Into(o)
}

// Patch changes an object, or a subresource of it.
func (r Resource[O, L]) Patch(ctx context.Context, name string, kind types.PatchType, patch []byte,
	options metav1.PatchOptions, part ...string) (O, error) {
	o := r.object()
	return o, r.request(r.api.Patch(kind)).Name(name).SubResource(part...).VersionedParams(&options,
		Parameters).Body(patch).Do(ctx).Into(o)
}

// Delete deletes an object.
func (r Resource[O, L]) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	return r.request(r.api.Delete()).Name(name).Body(&options).Do(ctx).Error()
}

// Log returns a request for a container's log.
func (c *Client) Log(pod *corev1.Pod, options *corev1.PodLogOptions) *rest.Request {
	return c.part(c.Core.Get(), pod, "log", options)
}

// Exec returns a request to run a command in a container.
func (c *Client) Exec(pod *corev1.Pod, options *corev1.PodExecOptions) *rest.Request {
	return c.part(c.Core.Post(), pod, "exec", options)
}

func (c *Client) part(q *rest.Request, pod *corev1.Pod, part string, options runtime.Object) *rest.Request {
	return q.Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource(part).VersionedParams(options,
		Parameters)
}
