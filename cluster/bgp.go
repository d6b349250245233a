package cluster

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/api/frrk8s"
	"hairpin/api/v1alpha1"
)

// Advertisement is one BGPAdvertisement: kinds of prefixes that nodes announce by BGP.
type Advertisement struct {
	Owner      Owner
	UID        string
	Generation int64
	// LoadBalancer, EgressIP and PodNetwork are the kinds.
	LoadBalancer, EgressIP, PodNetwork bool
	Configurations                     Selector // of FRRConfigurations: their neighbors get the prefixes
	Pools                              Selector // of the announced addresses
	Nodes                              Selector // of the announcing nodes
	// Rejected reports that a field is invalid: nothing is announced.
	Rejected bool
	Status   v1alpha1.BGPAdvertisementStatus
}

// LabelManagedBy is on the FRRConfigurations that the controller writes, with the value ManagedBy.
const (
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "hairpin"
)

// FRRConfiguration is one FRRConfiguration of frr-k8s. Only the controller reads them.
type FRRConfiguration struct {
	Owner  Owner
	Nodes  Selector
	Object *frrk8s.FRRConfiguration
}

// Generated reports whether the controller wrote the object.
func (c *FRRConfiguration) Generated() bool { return c.Object.Labels[LabelManagedBy] == ManagedBy }

func advertisementOwner(name string) Owner { return Owner{Kind: "BGPAdvertisement", Name: name} }

// FRRConfigurationOwner returns the name of an FRRConfiguration.
func FRRConfigurationOwner(o *frrk8s.FRRConfiguration) Owner {
	return ownerOf("FRRConfiguration", &o.ObjectMeta)
}

func parseAdvertisement(o *v1alpha1.BGPAdvertisement) (*Advertisement, []Problem) {
	p := objectParser{owner: advertisementOwner(o.Name)}
	copied := v1alpha1.BGPAdvertisement{}
	o.DeepCopyInto(&copied)
	a := &Advertisement{Owner: p.owner, UID: string(o.UID), Generation: o.Generation, Status: copied.Status}
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

// parseFRRConfiguration returns nil for one without a valid selector: frr-k8s does not use it.
func parseFRRConfiguration(o *frrk8s.FRRConfiguration) *FRRConfiguration {
	nodes, err := parseSelector(&o.Spec.NodeSelector)
	if err != nil || o.DeletionTimestamp != nil {
		return nil
	}
	// without what changes when nothing of interest does
	object := &frrk8s.FRRConfiguration{Spec: o.Spec, ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace,
		Name: o.Name, UID: o.UID, Labels: maps.Clone(o.Labels), OwnerReferences: slices.Clone(o.OwnerReferences)}}
	return &FRRConfiguration{Owner: FRRConfigurationOwner(o), Nodes: nodes, Object: object}
}
