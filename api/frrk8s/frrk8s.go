// Package frrk8s holds what Hairpin uses of the type FRRConfiguration of the API group
// frrk8s.metallb.io, which the project frr-k8s defines and ships.
package frrk8s

import (
	"maps"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "frrk8s.metallb.io", Version: "v1beta1"}
}

// Resource is the name of FRRConfigurations in the API's paths.
const Resource = "frrconfigurations"

// FRRConfiguration is a part of the configuration of FRR on some nodes. frr-k8s merges all parts
// that select a node.
type FRRConfiguration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec FRRConfigurationSpec `json:"spec,omitempty"`
}

// FRRConfigurationSpec has the fields that Hairpin reads or writes.
type FRRConfigurationSpec struct {
	BGP          BGPConfig            `json:"bgp,omitempty"`
	NodeSelector metav1.LabelSelector `json:"nodeSelector,omitempty"`
}

// BGPConfig has the routers of a node, one per VRF, and profiles that their neighbors name.
type BGPConfig struct {
	Routers     []Router `json:"routers,omitempty"`
	BFDProfiles []Fields `json:"bfdProfiles,omitempty"`
}

// Router is a BGP instance of FRR.
type Router struct {
	ASN       uint32     `json:"asn"`
	ID        string     `json:"id,omitempty"`
	VRF       string     `json:"vrf,omitempty"`
	Neighbors []Neighbor `json:"neighbors,omitempty"`
	Prefixes  []string   `json:"prefixes,omitempty"`
}

// Fields is an object as the API server has it. Hairpin copies fields that it does not know:
// frr-k8s merges only equal neighbors and equal profiles.
type Fields map[string]any

// Text returns a field that is a string; empty if it is absent.
func (f Fields) Text(name string) string {
	s, _ := f[name].(string)
	return s
}

// Neighbor is a BGP peer of a Router.
type Neighbor Fields

// Takes reports whether frr-k8s announces prefixes of an address's family to the neighbor: those of
// the session's family, or both families.
func (n Neighbor) Takes(a netip.Addr) bool {
	if both, _ := n["dualStackAddressFamily"].(bool); both || Fields(n).Text("interface") != "" {
		return true
	}
	session, err := netip.ParseAddr(Fields(n).Text("address"))
	return err == nil && session.Is4() == a.Is4()
}

// Announce returns a copy of the neighbor to which exactly these prefixes are announced. It does
// not define which prefixes are received from the neighbor: other FRRConfigurations do.
func (n Neighbor) Announce(prefixes []string) Neighbor {
	out := maps.Clone(n)
	delete(out, "toReceive")
	allowed := make([]any, len(prefixes)) // as a decoder makes it
	for i, p := range prefixes {
		allowed[i] = p
	}
	out["toAdvertise"] = map[string]any{"allowed": map[string]any{"mode": "filtered", "prefixes": allowed}}
	return out
}

// FRRConfigurationList is a list of FRRConfigurations.
type FRRConfigurationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []FRRConfiguration `json:"items"`
}

// DeepCopyInto copies c; out shares nothing with it.
func (c *FRRConfiguration) DeepCopyInto(out *FRRConfiguration) {
	*out = *c
	c.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	c.Spec.NodeSelector.DeepCopyInto(&out.Spec.NodeSelector)
	out.Spec.BGP.Routers = slices.Clone(c.Spec.BGP.Routers)
	for i := range out.Spec.BGP.Routers {
		r := &out.Spec.BGP.Routers[i]
		r.Prefixes, r.Neighbors = slices.Clone(r.Prefixes), slices.Clone(r.Neighbors)
		for j, n := range r.Neighbors {
			r.Neighbors[j] = runtime.DeepCopyJSON(n)
		}
	}
	out.Spec.BGP.BFDProfiles = slices.Clone(c.Spec.BGP.BFDProfiles)
	for i, p := range out.Spec.BGP.BFDProfiles {
		out.Spec.BGP.BFDProfiles[i] = runtime.DeepCopyJSON(p)
	}
}

// DeepCopyObject copies c.
func (c *FRRConfiguration) DeepCopyObject() runtime.Object {
	if c == nil {
		return nil
	}
	out := &FRRConfiguration{}
	c.DeepCopyInto(out)
	return out
}

// DeepCopyObject copies l.
func (l *FRRConfigurationList) DeepCopyObject() runtime.Object {
	if l == nil {
		return nil
	}
	out := &FRRConfigurationList{TypeMeta: l.TypeMeta}
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	if l.Items != nil {
		out.Items = make([]FRRConfiguration, len(l.Items))
		for i := range l.Items {
			l.Items[i].DeepCopyInto(&out.Items[i])
		}
	}
	return out
}
