// Package v1 holds the types of the API group k8s.ovn.org in version v1. They match OVN-Kubernetes,
// so manifests, clients and status of one work with the other. The resource definition is
// charts/hairpin/crds/egressips.yaml and egressservices.yaml; a test keeps them in step.
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "k8s.ovn.org", Version: "v1"}
}

// EgressIPResource is the name of EgressIPs in the API's paths.
const EgressIPResource = "egressips"

// EgressIP gives pods a source address for packets that leave the cluster. It is cluster-scoped.
type EgressIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   EgressIPSpec   `json:"spec"`
	Status EgressIPStatus `json:"status,omitempty"`
}

// EgressIPSpec is the state that the administrator requests.
type EgressIPSpec struct {
	// EgressIPs are the addresses, of either family. With several of one family, connections are
	// spread over them.
	EgressIPs []string `json:"egressIPs,omitempty"`
	// AddressPool is the name of a LoadBalancerPool from which the EgressIP gets further addresses,
	// one of each family that the pool has. It is Hairpin's own field.
	AddressPool string `json:"addressPool,omitempty"`
	// NamespaceSelector selects namespaces by label; an empty one selects all. It is required.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector"`
	// PodSelector selects pods in these namespaces by label; an empty one selects all.
	PodSelector metav1.LabelSelector `json:"podSelector,omitempty"`
	// EgressNodeSelector selects the nodes that may have the addresses, by label; an empty one
	// selects all. If it is absent, the nodes with the label k8s.ovn.org/egress-assignable may.
	EgressNodeSelector *metav1.LabelSelector `json:"egressNodeSelector,omitempty"`
	// DestinationCIDRs are the destinations to which packets have the addresses; absent: all
	// outside of the cluster. Packets to others have the node's address. It is Hairpin's own field.
	DestinationCIDRs []string `json:"destinationCIDRs,omitempty"`
	// ExcludedCIDRs are destinations to which packets have the node's address. It is Hairpin's own
	// field.
	ExcludedCIDRs []string `json:"excludedCIDRs,omitempty"`
	// WhenUnreachable is Keep (default) or Release: whether an address stays on a node that does
	// not answer, if no other node has an address of the family. It is Hairpin's own field.
	WhenUnreachable string `json:"whenUnreachable,omitempty"`
}

// Values of EgressIPSpec.WhenUnreachable.
const (
	Keep    = "Keep"    // pods have no path out, until Kubernetes reports that the node is not Ready
	Release = "Release" // pods leave with their node's address, as in OVN-Kubernetes
)

// EgressIPStatus is the actual state: which node has which address. Other addresses of the EgressIP
// have no node, and a condition of type EgressIPAssigned has the reason.
type EgressIPStatus struct {
	Items []EgressIPStatusItem `json:"items"`
	// Addresses are those of the pool that the EgressIP has.
	Addresses  []string           `json:"addresses,omitempty"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// EgressIPStatusItem is one address that a node has.
type EgressIPStatusItem struct {
	Node     string `json:"node"`
	EgressIP string `json:"egressIP"`
}

// EgressIPList is a list of EgressIPs.
type EgressIPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []EgressIP `json:"items"`
}

// Condition types of an EgressIP.
const (
	ConditionAssigned  = "EgressIPAssigned" // every address has a node
	ConditionAllocated = "AddressAllocated" // it has an address of each family of its pool
	// ConditionSelects is False while it selects no namespace, or pods that an older EgressIP
	// selects as well.
	ConditionSelects = "PodsSelected"
)
