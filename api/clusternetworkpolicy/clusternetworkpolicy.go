// Package clusternetworkpolicy holds the type ClusterNetworkPolicy of the API group
// policy.networking.k8s.io, which the project network-policy-api defines and ships.
package clusternetworkpolicy

import (
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const group = "policy.networking.k8s.io"

// Versions returns the API groups and versions, the preferred one first. They have equal fields.
func Versions() []schema.GroupVersion {
	return []schema.GroupVersion{{Group: group, Version: "v1beta1"}, {Group: group, Version: "v1alpha2"}}
}

// Resource is the name of ClusterNetworkPolicies in the API's paths.
const Resource = "clusternetworkpolicies"

// ClusterNetworkPolicy restricts the packets of pods of any namespace. It is cluster-scoped.
type ClusterNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the text of the spec. A field of a later version of the API must make a rule fail
	// closed, so its parser must see every field; and a spec that it cannot read must not hide
	// other objects of a list.
	Spec json.RawMessage `json:"spec,omitempty"`
}

// ClusterNetworkPolicyList is a list of ClusterNetworkPolicies.
type ClusterNetworkPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ClusterNetworkPolicy `json:"items"`
}

// DeepCopyInto copies p; out shares nothing with it.
func (p *ClusterNetworkPolicy) DeepCopyInto(out *ClusterNetworkPolicy) {
	*out = *p
	p.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec = slices.Clone(p.Spec)
}

// DeepCopyObject copies p.
func (p *ClusterNetworkPolicy) DeepCopyObject() runtime.Object {
	if p == nil {
		return nil
	}
	out := &ClusterNetworkPolicy{}
	p.DeepCopyInto(out)
	return out
}

// DeepCopyObject copies l.
func (l *ClusterNetworkPolicyList) DeepCopyObject() runtime.Object {
	if l == nil {
		return nil
	}
	out := &ClusterNetworkPolicyList{TypeMeta: l.TypeMeta}
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	if l.Items != nil {
		out.Items = make([]ClusterNetworkPolicy, len(l.Items))
		for i := range l.Items {
			l.Items[i].DeepCopyInto(&out.Items[i])
		}
	}
	return out
}
