package parse

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/api/frrk8s"
	"hairpin/api/v1alpha1"
	"hairpin/cluster"
)

// Advertisement returns a BGPAdvertisement with an invalid field as a rejected one.
func Advertisement(o *v1alpha1.BGPAdvertisement) (*cluster.Advertisement, []cluster.Problem) {
	p := objectParser{owner: Owner(o)}
	copied := v1alpha1.BGPAdvertisement{}
	o.DeepCopyInto(&copied)
	a := &cluster.Advertisement{Owner: p.owner, UID: string(o.UID), Generation: o.Generation, Status: copied.Status}
	for i, kind := range o.Spec.Advertisements {
		switch kind {
		case v1alpha1.AdvertiseLoadBalancer:
			a.LoadBalancer = true
		case v1alpha1.AdvertiseEgressIP:
			a.EgressIP = true
		case v1alpha1.AdvertisePodNetwork:
			a.PodNetwork = true
		default:
			p.problem(fmt.Sprintf("spec.advertisements[%d]", i), "%q is none of %s, %s and %s", kind,
				v1alpha1.AdvertiseLoadBalancer, v1alpha1.AdvertiseEgressIP, v1alpha1.AdvertisePodNetwork)
			a.Rejected = true
		}
	}
	if !p.selectors(
		selectorField{"spec.frrConfigurationSelector", &o.Spec.FRRConfigurationSelector, &a.Configurations},
		selectorField{"spec.loadBalancerPoolSelector", &o.Spec.LoadBalancerPoolSelector, &a.Pools},
		selectorField{"spec.nodeSelector", &o.Spec.NodeSelector, &a.Nodes}) {
		a.Rejected = true
	}
	return a, p.problems.List()
}

// FRRConfiguration returns nil for one without a valid selector: frr-k8s does not use it.
func FRRConfiguration(o *frrk8s.FRRConfiguration) *cluster.FRRConfiguration {
	nodes, err := parseSelector(&o.Spec.NodeSelector)
	if err != nil || o.DeletionTimestamp != nil {
		return nil
	}
	// without fields that often change and that Hairpin does not use
	object := &frrk8s.FRRConfiguration{Spec: o.Spec, ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace,
		Name: o.Name, UID: o.UID, Labels: maps.Clone(o.Labels), OwnerReferences: slices.Clone(o.OwnerReferences)}}
	return &cluster.FRRConfiguration{Owner: cluster.FRRConfigurationOwner(o), Nodes: nodes, Object: object}
}
