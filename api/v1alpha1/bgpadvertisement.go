package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// AdvertisementResource is the name of BGPAdvertisements in the API's paths.
const AdvertisementResource = "bgpadvertisements"

// BGPAdvertisement announces addresses by BGP, through frr-k8s: the controller adds their prefixes
// to the neighbors of FRRConfigurations. It is cluster-scoped. The resource definition is
// charts/hairpin/crds/bgpadvertisements.yaml.
type BGPAdvertisement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BGPAdvertisementSpec   `json:"spec"`
	Status BGPAdvertisementStatus `json:"status,omitempty"`
}

// Values of BGPAdvertisementSpec.Advertisements.
const (
	AdvertiseLoadBalancer = "LoadBalancer" // addresses of LoadBalancerPools that Services have
	AdvertiseEgressIP     = "EgressIP"     // addresses of EgressIPs, by the node that has them
	AdvertisePodNetwork   = "PodNetwork"   // the pod ranges of each node
)

// BGPAdvertisementSpec is the state that the administrator requests.
type BGPAdvertisementSpec struct {
	// Advertisements are the kinds of prefixes that are announced.
	Advertisements []string `json:"advertisements"`
	// FRRConfigurationSelector selects, by label, FRRConfigurations of frr-k8s. The prefixes are
	// announced to the neighbors of their routers; an empty one selects all.
	FRRConfigurationSelector metav1.LabelSelector `json:"frrConfigurationSelector"`
	// LoadBalancerPoolSelector selects, by label, the pools of the announced addresses; an empty
	// one selects all.
	LoadBalancerPoolSelector metav1.LabelSelector `json:"loadBalancerPoolSelector,omitempty"`
	// NodeSelector selects, by label, the nodes that announce; an empty one selects all.
	NodeSelector metav1.LabelSelector `json:"nodeSelector,omitempty"`
}

// BGPAdvertisementStatus is the actual state.
type BGPAdvertisementStatus struct {
	// Nodes is how many nodes announce a prefix, and Prefixes how many different ones they
	// announce.
	Nodes      int64              `json:"nodes"`
	Prefixes   int64              `json:"prefixes"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// BGPAdvertisementList is a list of BGPAdvertisements.
type BGPAdvertisementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []BGPAdvertisement `json:"items"`
}

// ConditionAdvertised of a BGPAdvertisement: all its prefixes are in FRRConfigurations.
const ConditionAdvertised = "Advertised"

// DeepCopyInto copies a; out shares nothing with it.
func (a *BGPAdvertisement) DeepCopyInto(out *BGPAdvertisement) {
	*out = *a
	a.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Advertisements = slices.Clone(a.Spec.Advertisements)
	a.Spec.FRRConfigurationSelector.DeepCopyInto(&out.Spec.FRRConfigurationSelector)
	a.Spec.LoadBalancerPoolSelector.DeepCopyInto(&out.Spec.LoadBalancerPoolSelector)
	a.Spec.NodeSelector.DeepCopyInto(&out.Spec.NodeSelector)
	out.Status.Conditions = slices.Clone(a.Status.Conditions)
}

// DeepCopyObject copies a.
func (a *BGPAdvertisement) DeepCopyObject() runtime.Object {
	if a == nil {
		return nil
	}
	out := &BGPAdvertisement{}
	a.DeepCopyInto(out)
	return out
}

// DeepCopyObject copies l.
func (l *BGPAdvertisementList) DeepCopyObject() runtime.Object {
	if l == nil {
		return nil
	}
	out := &BGPAdvertisementList{TypeMeta: l.TypeMeta}
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	if l.Items != nil {
		out.Items = make([]BGPAdvertisement, len(l.Items))
		for i := range l.Items {
			l.Items[i].DeepCopyInto(&out.Items[i])
		}
	}
	return out
}
