package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"hairpin/cluster"
)

// Pools are LoadBalancerPools made of MetalLB's IPAddressPools and L2Advertisements
// (metallb.io/v1beta1).
type Pools struct {
	pools          []metalPool
	advertisements []metalAdvertisement
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

type metalAdvertisement struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Pools         []string               `json:"ipAddressPools"`
		PoolSelectors []metav1.LabelSelector `json:"ipAddressPoolSelectors"`
		NodeSelectors []metav1.LabelSelector `json:"nodeSelectors"`
		Interfaces    []string               `json:"interfaces"`
	} `json:"spec"`
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
		Kind     string            `json:"kind"`
		Metadata metav1.ObjectMeta `json:"metadata"`
		Items    []any             `json:"items"`
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

// Convert returns the pools as YAML. Comments above a pool say what differs from MetalLB.
func (p *Pools) Convert() (string, error) {
	if len(p.pools) == 0 {
		return "", errors.New("there is no IPAddressPool")
	}
	var out strings.Builder
	for i := range p.pools {
		text, notes, err := p.convert(&p.pools[i])
		if err != nil {
			return "", fmt.Errorf("IPAddressPool/%s: %w", p.pools[i].Metadata.Name, err)
		}
		fmt.Fprintln(&out, "---")
		for _, n := range notes {
			fmt.Fprintln(&out, "# "+n)
		}
		out.WriteString(text)
	}
	return out.String(), nil
}

func (p *Pools) convert(x *metalPool) (text string, notes []string, err error) {
	spec := map[string]any{"ranges": x.Spec.Addresses}
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	// one sets a selector of the pool, which has one where MetalLB has a list.
	one := func(field, of string, list []metav1.LabelSelector) {
		if len(list) > 0 {
			spec[field] = list[0]
		}
		if len(list) > 1 {
			note("%s: only the first of %d; make a pool for each, with ranges of its own", of, len(list))
		}
	}
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
			return "", nil, err
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
	body, err := yaml.Marshal(map[string]any{"apiVersion": "hairpin.dev/v1alpha1", "kind": "LoadBalancerPool",
		"metadata": map[string]string{"name": x.Metadata.Name}, "spec": spec})
	return string(body), notes, err
}

// announces reports whether an advertisement selects a pool. One that selects nothing is for all.
func (a *metalAdvertisement) announces(x *metalPool) (bool, error) {
	if len(a.Spec.Pools)+len(a.Spec.PoolSelectors) == 0 || slices.Contains(a.Spec.Pools, x.Metadata.Name) {
		return true, nil
	}
	for i := range a.Spec.PoolSelectors {
		s, err := metav1.LabelSelectorAsSelector(&a.Spec.PoolSelectors[i])
		if err != nil {
			return false, fmt.Errorf("L2Advertisement/%s: ipAddressPoolSelectors: %w", a.Metadata.Name, err)
		}
		if s.Matches(labels.Set(x.Metadata.Labels)) {
			return true, nil
		}
	}
	return false, nil
}
