package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// EgressServiceResource is the name of EgressServices in the API's paths.
const EgressServiceResource = "egressservices"

// EgressService gives the endpoints of the Service with its name and namespace the Service's load
// balancer address as their source when packets leave the cluster. The Service must have one. The
// resource definition is charts/hairpin/crds/egressservices.yaml.
type EgressService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   EgressServiceSpec   `json:"spec,omitempty"`
	Status EgressServiceStatus `json:"status,omitempty"`
}

// Values of EgressServiceSpec.SourceIPBy.
const (
	SourceLoadBalancerIP = "LoadBalancerIP" // the Service's load balancer address; also if empty
	SourceNetwork        = "Network"        // the address of the node that the pod is on
)

// HostAll is the status' host for SourceNetwork.
const HostAll = "ALL"

// EgressServiceSpec is the state that the owner of the Service requests.
type EgressServiceSpec struct {
	SourceIPBy string `json:"sourceIPBy,omitempty"`
	// NodeSelector selects by label the nodes that may be the host; an empty one selects all.
	NodeSelector metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// Network is the VRF, by name, or the route table, by number, of the host by which the packets
	// leave; empty: none.
	Network string `json:"network,omitempty"`
}

// EgressServiceStatus is the actual state. Host is the node by which the pods leave, HostAll if
// each pod leaves by its own node, and empty while there is none.
type EgressServiceStatus struct {
	Host string `json:"host"`
}

// EgressServiceList is a list of EgressServices.
type EgressServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []EgressService `json:"items"`
}

// DeepCopyInto copies e; out shares nothing with it.
func (e *EgressService) DeepCopyInto(out *EgressService) {
	*out = *e
	e.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	e.Spec.NodeSelector.DeepCopyInto(&out.Spec.NodeSelector)
}

// DeepCopyObject copies e.
func (e *EgressService) DeepCopyObject() runtime.Object {
	if e == nil {
		return nil
	}
	out := &EgressService{}
	e.DeepCopyInto(out)
	return out
}

// DeepCopyObject copies l.
func (l *EgressServiceList) DeepCopyObject() runtime.Object {
	if l == nil {
		return nil
	}
	out := &EgressServiceList{TypeMeta: l.TypeMeta}
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	if l.Items != nil {
		out.Items = make([]EgressService, len(l.Items))
		for i := range l.Items {
			l.Items[i].DeepCopyInto(&out.Items[i])
		}
	}
	return out
}
