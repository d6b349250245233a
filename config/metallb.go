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

// MetalLB converts the objects of MetalLB (metallb.io/v1beta1, BGPPeers v1beta2). Add reads them,
// and Convert returns objects of Hairpin and frr-k8s:
//   - a LoadBalancerPool for each IPAddressPool, with the L2Advertisements that select it,
//   - a BGPAdvertisement of Hairpin for each one of MetalLB,
//   - an FRRConfiguration for each BGPPeer.
type MetalLB struct {
	pools       []metalPool
	layer2      []metalAdvertisement
	bgp         []metalAdvertisement
	peers       []metalPeer
	bfdProfiles map[string]frrk8s.Fields // by name
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
	fields frrk8s.Fields // all fields of spec
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
	fields frrk8s.Fields // all fields of spec
}

// Add reads a file with documents of YAML, or a list of objects as kubectl prints it. It returns
// the objects of other kinds.
func (p *MetalLB) Add(file string, text []byte) (others []string, err error) {
	n := 0
	for doc, err := range cluster.Documents(text) {
		n++
		if err == nil {
			var more []string
			more, err = p.addObject(doc)
			others = append(others, more...)
		}
		if err != nil {
			return others, fmt.Errorf("%s: document %d: %w", file, n, err)
		}
	}
	return others, nil
}

func (p *MetalLB) addObject(doc []byte) (others []string, err error) {
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
	kind := o.Kind
	switch {
	case strings.HasSuffix(kind, "List"):
		kind = "List"
	case !strings.HasPrefix(o.APIVersion, "metallb.io/"):
		kind = "" // Calico has BGPPeers, too, and Hairpin BGPAdvertisements
	}
	switch kind {
	case "IPAddressPool":
		x := metalPool{fields: o.Spec}
		err = yaml.Unmarshal(doc, &x)
		p.pools = append(p.pools, x)
	case "L2Advertisement":
		x := metalAdvertisement{fields: o.Spec}
		err = yaml.Unmarshal(doc, &x)
		p.layer2 = append(p.layer2, x)
	case "BGPAdvertisement":
		x := metalAdvertisement{fields: o.Spec}
		err = yaml.Unmarshal(doc, &x)
		p.bgp = append(p.bgp, x)
	case "BGPPeer":
		x := metalPeer{fields: o.Spec}
		err = yaml.Unmarshal(doc, &x)
		p.peers = append(p.peers, x)
	case "BFDProfile":
		profile := frrk8s.Fields{"name": o.Metadata.Name}
		maps.Copy(profile, o.Spec)
		if p.bfdProfiles == nil {
			p.bfdProfiles = map[string]frrk8s.Fields{}
		}
		p.bfdProfiles[o.Metadata.Name] = profile
	case "List":
		for _, item := range o.Items {
			text, err := yaml.Marshal(item)
			if err != nil {
				return others, err
			}
			more, err := p.addObject(text)
			if others = append(others, more...); err != nil {
				return others, err
			}
		}
	default:
		if o.Kind != "" { // not an empty document
			others = []string{o.Kind + "/" + o.Metadata.Name}
		}
	}
	return others, err
}

// Convert returns YAML. Comments above an object say what differs from MetalLB.
func (p *MetalLB) Convert() (string, error) {
	if len(p.pools)+len(p.bgp)+len(p.peers) == 0 {
		return "", errors.New("there is no IPAddressPool, BGPAdvertisement or BGPPeer of MetalLB")
	}
	var out strings.Builder
	for i := range p.pools {
		o, err := p.pool(&p.pools[i])
		if err == nil {
			err = o.write(&out)
		}
		if err != nil {
			return "", fmt.Errorf("IPAddressPool/%s: %w", p.pools[i].Metadata.Name, err)
		}
	}
	for i := range p.bgp {
		o, err := p.advertisement(&p.bgp[i])
		if err == nil {
			err = o.write(&out)
		}
		if err != nil {
			return "", fmt.Errorf("BGPAdvertisement/%s: %w", p.bgp[i].Metadata.Name, err)
		}
	}
	for i := range p.peers {
		if err := p.peer(&p.peers[i]).write(&out); err != nil {
			return "", fmt.Errorf("BGPPeer/%s: %w", p.peers[i].Metadata.Name, err)
		}
	}
	return out.String(), nil
}

// object is a converted object, as its YAML is written.
type object struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   objectMeta     `json:"metadata"`
	Spec       map[string]any `json:"spec"`

	notes []string // what differs from MetalLB
}

type objectMeta struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// write adds the object to out as a document, after its notes.
func (o *object) write(out *strings.Builder) error {
	text, err := yaml.Marshal(o)
	fmt.Fprintln(out, "---")
	for _, n := range o.notes {
		fmt.Fprintln(out, "# "+n)
	}
	out.Write(text)
	return err
}

func (o *object) note(format string, args ...any) {
	o.notes = append(o.notes, fmt.Sprintf(format, args...))
}

// noteOthers notes the fields that are not among the known ones. of follows their names.
func (o *object) noteOthers(fields frrk8s.Fields, of string, known ...string) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(known, name) {
			o.note("%s%s: not converted", name, of)
		}
	}
}

// selector sets a selector of the spec to the first of those that MetalLB's field has.
func (o *object) selector(name, metalField string, list []metav1.LabelSelector) {
	if len(list) > 0 {
		o.Spec[name] = list[0]
	}
	if len(list) > 1 {
		o.note("%s: only the first of %d; make an object for each (pools: with ranges of their own)", metalField,
			len(list))
	}
}

// pool converts an IPAddressPool, with the L2Advertisements that select it, to a LoadBalancerPool.
func (p *MetalLB) pool(x *metalPool) (*object, error) {
	o := &object{APIVersion: v1alpha1.GroupVersion().String(), Kind: "LoadBalancerPool",
		Metadata: objectMeta{Name: x.Metadata.Name}, Spec: map[string]any{"ranges": x.Spec.Addresses}}
	if a := x.Spec.ServiceAllocation; a != nil {
		namespaces := a.NamespaceSelectors
		if len(a.Namespaces) > 0 {
			namespaces = append([]metav1.LabelSelector{{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpIn, Values: a.Namespaces}}}},
				namespaces...)
		}
		o.selector("namespaceSelector", "serviceAllocation.namespaces and namespaceSelectors", namespaces)
		o.selector("serviceSelector", "serviceAllocation.serviceSelectors", a.ServiceSelectors)
		if a.Priority != 0 {
			o.note("serviceAllocation.priority: pools are taken in the order of their names")
		}
	}
	if x.Spec.AutoAssign != nil && !*x.Spec.AutoAssign {
		o.note("autoAssign is false: restrict the pool by serviceSelector, else Services get these " +
			"addresses without a request")
	}
	if x.Spec.AvoidBuggyIPs {
		o.note("avoidBuggyIPs: leave addresses that end in .0 and .255 out of the ranges")
	}
	o.noteOthers(x.fields, "", "addresses", "autoAssign", "avoidBuggyIPs", "serviceAllocation")
	var nodes []metav1.LabelSelector
	allNodes, announced := false, false
	for _, a := range p.layer2 {
		selected, err := a.selects(x)
		if err != nil {
			return nil, err
		}
		if !selected {
			continue
		}
		announced = true
		nodes, allNodes = append(nodes, a.Spec.NodeSelectors...), allNodes || len(a.Spec.NodeSelectors) == 0
		if len(a.Spec.Interfaces) > 0 {
			o.note("interfaces of L2Advertisement/%s: the link that has the address in its network announces it",
				a.Metadata.Name)
		}
		o.noteOthers(a.fields, " of L2Advertisement/"+a.Metadata.Name, "ipAddressPools", "ipAddressPoolSelectors",
			"nodeSelectors", "interfaces")
	}
	if !announced {
		o.note("no L2Advertisement announces this pool: MetalLB did not, or by BGP")
	}
	if !allNodes {
		o.selector("nodeSelector", "nodeSelectors", nodes)
	}
	if len(p.bgp) > 0 {
		o.Metadata.Labels = map[string]string{labelPool: x.Metadata.Name}
	}
	return o, nil
}

// selects reports whether an advertisement announces a pool. One without selectors announces all.
func (a *metalAdvertisement) selects(x *metalPool) (bool, error) {
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
