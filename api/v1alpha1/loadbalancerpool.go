// Package v1alpha1 holds the types of the API group hairpin.dev in version v1alpha1. The resource
// definition is charts/hairpin/crds/loadbalancerpools.yaml; a test keeps them in step.
package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "hairpin.dev", Version: "v1alpha1"}
}

// PoolResource is the name of LoadBalancerPools in the API's paths.
const PoolResource = "loadbalancerpools"

// LoadBalancerPool has addresses for Services of type LoadBalancer, and for EgressIPs that name it.
// It is cluster-scoped.
type LoadBalancerPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   LoadBalancerPoolSpec   `json:"spec"`
	Status LoadBalancerPoolStatus `json:"status,omitempty"`
}

// LoadBalancerPoolSpec is the state that the administrator requests.
type LoadBalancerPoolSpec struct {
	// Ranges are the addresses, of either family: "192.0.2.0/26" or "192.0.2.10-192.0.2.20".
	Ranges []string `json:"ranges,omitempty"`
	// NodeAddresses, in place of Ranges, lets Services use the own addresses of the nodes that
	// NodeSelector selects.
	NodeAddresses *NodeAddresses `json:"nodeAddresses,omitempty"`
	// NamespaceSelector selects the namespaces of Services that may have an address; an empty one
	// selects all.
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// ServiceSelector selects Services in these namespaces by label; an empty one selects all.
	ServiceSelector metav1.LabelSelector `json:"serviceSelector,omitempty"`
	// NodeSelector selects, by label, the nodes that may announce the addresses; an empty one
	// selects all.
	NodeSelector metav1.LabelSelector `json:"nodeSelector,omitempty"`
}

// NodeAddresses makes a pool of the InternalIPs of nodes.
type NodeAddresses struct {
	// Ports are those that Services may have there: "443" or "8000-8099". If the host of a
	// node uses one of them, no Service has it at that node.
	Ports []string `json:"ports"`
}

// LoadBalancerPoolStatus is the actual state. Only the controller writes it: agents announce what
// it says.
type LoadBalancerPoolStatus struct {
	// Addresses are those that Services have, sorted.
	Addresses []PoolAddress `json:"addresses,omitempty"`
	// InUse and Available are how many addresses Services have, and how many they can still get.
	InUse      int64              `json:"inUse"`
	Available  int64              `json:"available"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PoolAddress is an address that Services have.
type PoolAddress struct {
	Address string `json:"address"`
	// Services are "namespace/name", the oldest first. Several share the address. For an EgressIP,
	// it is "EgressIP/name".
	Services []string `json:"services"`
	// Node announces the address, or it is the node's own; empty while no node announces it.
	// Message then has the reason.
	Node    string `json:"node,omitempty"`
	Message string `json:"message,omitempty"`
	// Previous are nodes that announced the address before Node, the last one first. They may have
	// open connections to it, so Node forwards packets of connections that it does not know to
	// them.
	Previous []PreviousNode `json:"previous,omitempty"`
}

// PreviousNode is a node that announced an address.
type PreviousNode struct {
	Node string `json:"node"`
	// Until is when the controller removes the entry, by its own clock.
	Until metav1.Time `json:"until"`
}

// LoadBalancerPoolList is a list of LoadBalancerPools.
type LoadBalancerPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []LoadBalancerPool `json:"items"`
}

// Condition types.
const (
	ConditionRanges    = "RangesValid"        // of a pool: every range can be used
	ConditionAvailable = "AddressesAvailable" // of a pool: each family with a range has a free address
	// ConditionAddress of a Service: it has the addresses that it requests.
	ConditionAddress = "hairpin.dev/LoadBalancerAddress"
)

// Annotations of Services.
const (
	// AnnotationAddresses has the addresses that a Service requests, comma-separated, at most one
	// per family.
	AnnotationAddresses = "hairpin.dev/load-balancer-ips"
	// AnnotationSharing has a key. Services of one namespace with the same key may have the same
	// address.
	AnnotationSharing = "hairpin.dev/load-balancer-sharing-key"
)

// DeepCopyInto copies p; out shares nothing with it.
func (p *LoadBalancerPool) DeepCopyInto(out *LoadBalancerPool) {
	*out = *p
	p.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Ranges = slices.Clone(p.Spec.Ranges)
	if p.Spec.NodeAddresses != nil {
		out.Spec.NodeAddresses = &NodeAddresses{slices.Clone(p.Spec.NodeAddresses.Ports)}
	}
	p.Spec.NamespaceSelector.DeepCopyInto(&out.Spec.NamespaceSelector)
	p.Spec.ServiceSelector.DeepCopyInto(&out.Spec.ServiceSelector)
	p.Spec.NodeSelector.DeepCopyInto(&out.Spec.NodeSelector)
	out.Status.Addresses = slices.Clone(p.Status.Addresses)
	for i := range out.Status.Addresses {
		out.Status.Addresses[i].Services = slices.Clone(p.Status.Addresses[i].Services)
		out.Status.Addresses[i].Previous = slices.Clone(p.Status.Addresses[i].Previous)
	}
	out.Status.Conditions = slices.Clone(p.Status.Conditions)
}

// DeepCopyObject copies p.
func (p *LoadBalancerPool) DeepCopyObject() runtime.Object {
	if p == nil {
		return nil
	}
	out := &LoadBalancerPool{}
	p.DeepCopyInto(out)
	return out
}

// DeepCopyObject copies l.
func (l *LoadBalancerPoolList) DeepCopyObject() runtime.Object {
	if l == nil {
		return nil
	}
	out := &LoadBalancerPoolList{TypeMeta: l.TypeMeta}
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	if l.Items != nil {
		out.Items = make([]LoadBalancerPool, len(l.Items))
		for i := range l.Items {
			l.Items[i].DeepCopyInto(&out.Items[i])
		}
	}
	return out
}
