package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"hairpin/api/frrk8s"
	"hairpin/api/v1alpha1"
	"hairpin/cluster"
)

// Pools are LoadBalancerPools made of MetalLB's IPAddressPools and L2Advertisements
// (metallb.io/v1beta1), and what announces them by BGP: BGPAdvertisements, and FRRConfigurations
// made of BGPPeers (v1beta2).
type Pools struct {
	pools          []metalPool
	advertisements []metalAdvertisement // by layer 2
	bgp            []metalAdvertisement
	peers          []metalPeer
	bfdProfiles    map[string]frrk8s.Fields // by name
}

type metalPool struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Addresses         []string `json:"addresses"`
		AutoAssign        *bool    `json:"autoAssign"`
		AvoidBuggyIPs     bool     `json:"avoidBuggyIPs"`
		ServiceAllocation *struct {
			Priority           int                    `json:"priority"`
			Namespaces         []string               `json:"namespaces"`
			NamespaceSelectors []metav1.LabelSelector `json:"namespaceSelectors"`
			ServiceSelectors   []metav1.LabelSelector `json:"serviceSelectors"`
		} `json:"serviceAllocation"`
	} `json:"spec"`
}

// metalAdvertisement is an L2Advertisement or a BGPAdvertisement.
type metalAdvertisement struct {
	Kind     string            `json:"kind"`
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Pools         []string               `json:"ipAddressPools"`
		PoolSelectors []metav1.LabelSelector `json:"ipAddressPoolSelectors"`
		NodeSelectors []metav1.LabelSelector `json:"nodeSelectors"`
		Interfaces    []string               `json:"interfaces"` // of an L2Advertisement
		Peers         []string               `json:"peers"`      // of a BGPAdvertisement
	} `json:"spec"`
	all frrk8s.Fields // the fields of spec
}

// Add reads a file with documents of YAML, or a list of objects as kubectl prints it. It returns
// the objects of other kinds.
func (p *Pools) Add(file string, text []byte) (others []string, err error) {
	n := 0
	for doc, err := range cluster.Documents(text) {
		n++
		if err == nil {
			var more []string
			more, err = p.object(doc)
			others = append(others, more...)
		}
		if err != nil {
			return others, fmt.Errorf("%s: document %d: %w", file, n, err)
		}
	}
	return others, nil
}

func (p *Pools) object(doc []byte) (others []string, err error) {
	var o struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Metadata   metav1.ObjectMeta `json:"metadata"`
		Spec       frrk8s.Fields     `json:"spec"`
		Items      []any             `json:"items"`
	}
	if err := yaml.Unmarshal(doc, &o); err != nil {
		return nil, err
	}
	switch {
	case o.Kind == "IPAddressPool":
		var x metalPool
		err = yaml.Unmarshal(doc, &x)
		p.pools = append(p.pools, x)
	case o.Kind == "L2Advertisement":
		var x metalAdvertisement
		err = yaml.Unmarshal(doc, &x)
		p.advertisements = append(p.advertisements, x)
	case o.Kind == "BGPAdvertisement" && strings.HasPrefix(o.APIVersion, "metallb.io/"):
		x := metalAdvertisement{all: o.Spec}
		err = yaml.Unmarshal(doc, &x)
		p.bgp = append(p.bgp, x)
	case o.Kind == "BGPPeer":
		x := metalPeer{all: o.Spec}
		err = yaml.Unmarshal(doc, &x)
		p.peers = append(p.peers, x)
	case o.Kind == "BFDProfile":
		profile := frrk8s.Fields{"name": o.Metadata.Name}
		maps.Copy(profile, o.Spec)
		if p.bfdProfiles == nil {
			p.bfdProfiles = map[string]frrk8s.Fields{}
		}
		p.bfdProfiles[o.Metadata.Name] = profile
	case strings.HasSuffix(o.Kind, "List"):
		for _, item := range o.Items {
			text, err := yaml.Marshal(item)
			if err != nil {
				return others, err
			}
			more, err := p.object(text)
			if others = append(others, more...); err != nil {
				return others, err
			}
		}
	case o.Kind != "":
		return []string{o.Kind + "/" + o.Metadata.Name}, nil
	}
	return others, err
}

// Convert returns the objects as YAML. Comments above an object say what differs from MetalLB.
func (p *Pools) Convert() (string, error) {
	if len(p.pools)+len(p.bgp)+len(p.peers) == 0 {
		return "", errors.New("there is no IPAddressPool, BGPAdvertisement or BGPPeer of MetalLB")
	}
	var out strings.Builder
	for i := range p.pools {
		o, notes, err := p.convert(&p.pools[i])
		if err := write(&out, o, notes, err); err != nil {
			return "", fmt.Errorf("IPAddressPool/%s: %w", p.pools[i].Metadata.Name, err)
		}
	}
	for i := range p.bgp {
		o, notes, err := p.advertisement(&p.bgp[i])
		if err := write(&out, o, notes, err); err != nil {
			return "", fmt.Errorf("BGPAdvertisement/%s: %w", p.bgp[i].Metadata.Name, err)
		}
	}
	for i := range p.peers {
		o, notes, err := p.peer(&p.peers[i])
		if err := write(&out, o, notes, err); err != nil {
			return "", fmt.Errorf("BGPPeer/%s: %w", p.peers[i].Metadata.Name, err)
		}
	}
	return out.String(), nil
}

// object is an object of the Kubernetes API without status.
type object struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   objectMeta     `json:"metadata"`
	Spec       map[string]any `json:"spec"`
}

type objectMeta struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// write adds a document to out, unless there is an error.
func write(out *strings.Builder, o object, notes []string, err error) error {
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(o)
	fmt.Fprintln(out, "---")
	for _, n := range notes {
		fmt.Fprintln(out, "# "+n)
	}
	out.Write(text)
	return err
}

// spec is the spec of a converted object, with notes about what differs.
type spec struct {
	fields map[string]any
	notes  []string
}

func (s *spec) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// one sets a selector of the object, which has one where MetalLB has a list.
func (s *spec) one(field, of string, list []metav1.LabelSelector) {
	if len(list) > 0 {
		s.fields[field] = list[0]
	}
	if len(list) > 1 {
		s.note("%s: only the first of %d; make an object for each (pools: with ranges of their own)", of, len(list))
	}
}

func (p *Pools) convert(x *metalPool) (o object, notes []string, err error) {
	s := &spec{fields: map[string]any{"ranges": x.Spec.Addresses}}
	one, note := s.one, s.note
	if a := x.Spec.ServiceAllocation; a != nil {
		namespaces := a.NamespaceSelectors
		if len(a.Namespaces) > 0 {
			namespaces = append([]metav1.LabelSelector{{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpIn, Values: a.Namespaces}}}},
				namespaces...)
		}
		one("namespaceSelector", "serviceAllocation.namespaces and namespaceSelectors", namespaces)
		one("serviceSelector", "serviceAllocation.serviceSelectors", a.ServiceSelectors)
		if a.Priority != 0 {
			note("serviceAllocation.priority: pools are taken in the order of their names")
		}
	}
	if x.Spec.AutoAssign != nil && !*x.Spec.AutoAssign {
		note("autoAssign is false: restrict the pool by serviceSelector, else Services get these " +
			"addresses without a request")
	}
	if x.Spec.AvoidBuggyIPs {
		note("avoidBuggyIPs: leave addresses that end in .0 and .255 out of the ranges")
	}
	var nodes []metav1.LabelSelector
	all, announced := false, false
	for _, a := range p.advertisements {
		is, err := a.announces(x)
		if err != nil {
			return o, nil, err
		}
		if !is {
			continue
		}
		announced = true
		nodes, all = append(nodes, a.Spec.NodeSelectors...), all || len(a.Spec.NodeSelectors) == 0
		if len(a.Spec.Interfaces) > 0 {
			note("interfaces of L2Advertisement/%s: the link whose network has the address announces it",
				a.Metadata.Name)
		}
	}
	if !announced {
		note("no L2Advertisement announces this pool: MetalLB did not, or by BGP")
	}
	if !all {
		one("nodeSelector", "nodeSelectors", nodes)
	}
	o = object{v1alpha1.GroupVersion().String(), "LoadBalancerPool", objectMeta{Name: x.Metadata.Name}, s.fields}
	if len(p.bgp) > 0 {
		o.Metadata.Labels = map[string]string{labelPool: x.Metadata.Name}
	}
	return o, s.notes, nil
}

// announces reports whether an advertisement selects a pool. One that selects nothing is for all.
func (a *metalAdvertisement) announces(x *metalPool) (bool, error) {
	if len(a.Spec.Pools)+len(a.Spec.PoolSelectors) == 0 || slices.Contains(a.Spec.Pools, x.Metadata.Name) {
		return true, nil
	}
	for i := range a.Spec.PoolSelectors {
		s, err := metav1.LabelSelectorAsSelector(&a.Spec.PoolSelectors[i])
		if err != nil {
			return false, fmt.Errorf("%s/%s: ipAddressPoolSelectors: %w", a.Kind, a.Metadata.Name, err)
		}
		if s.Matches(labels.Set(x.Metadata.Labels)) {
			return true, nil
		}
	}
	return false, nil
}
