package cluster

import (
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

// The FRRConfigurations that the controller writes have the label LabelManagedBy with the value
// ManagedBy.
const (
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "hairpin"
)

// FRRConfiguration is one FRRConfiguration of frr-k8s. Only the controller reads these objects.
type FRRConfiguration struct {
	Owner  Owner
	Nodes  Selector
	Object *frrk8s.FRRConfiguration
}

// Generated reports whether the controller wrote the object.
func (c *FRRConfiguration) Generated() bool { return c.Object.Labels[LabelManagedBy] == ManagedBy }

// FRRConfigurationOwner returns the name of an FRRConfiguration.
func FRRConfigurationOwner(o *frrk8s.FRRConfiguration) Owner {
	return Owner{"FRRConfiguration", o.Namespace, o.Name}
}
