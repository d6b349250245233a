package config

import (
	"cmp"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/api/frrk8s"
	"hairpin/api/v1alpha1"
)

// Labels of converted objects, with their name in MetalLB: MetalLB's advertisements name pools and
// peers, Hairpin's select them by labels.
const (
	labelPool = "metallb.io/pool"
	labelPeer = "metallb.io/peer"
)

// frrNamespace is the namespace in which the manifests of frr-k8s install it.
const frrNamespace = "frr-k8s-system"

// metalPeer is a BGPPeer. Spec has the fields that do not become fields of a neighbor as they are.
type metalPeer struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		MyASN          uint32                 `json:"myASN"`
		RouterID       string                 `json:"routerID"`
		VRF            string                 `json:"vrf"`
		NodeSelectors  []metav1.LabelSelector `json:"nodeSelectors"`
		PasswordSecret struct {
			Name string `json:"name"`
		} `json:"passwordSecret"`
	} `json:"spec"`
	fields frrk8s.Fields // all fields of spec
}

// neighborFields has the fields of a BGPPeer that a neighbor of frr-k8s has, too. The value is the
// neighbor's name of a field, if it differs.
var neighborFields = map[string]string{"peerASN": "asn", "peerAddress": "address", "peerPort": "port",
	"sourceAddress": "sourceaddress", "dynamicASN": "", "interface": "", "holdTime": "", "keepaliveTime": "",
	"connectTime": "", "password": "", "bfdProfile": "", "enableGracefulRestart": "", "ebgpMultiHop": "",
	"disableMP": "", "dualStackAddressFamily": ""}

// peer converts a BGPPeer to an FRRConfiguration.
func (p *MetalLB) peer(x *metalPeer) *object {
	o := &object{APIVersion: frrk8s.GroupVersion().String(), Kind: "FRRConfiguration",
		Metadata: objectMeta{x.Metadata.Name, frrNamespace, map[string]string{labelPeer: x.Metadata.Name}},
		Spec:     map[string]any{}}
	o.selector("nodeSelector", "nodeSelectors", x.Spec.NodeSelectors)
	neighbor := frrk8s.Neighbor{}
	for _, field := range slices.Sorted(maps.Keys(x.fields)) {
		name, known := neighborFields[field]
		switch {
		case known:
			neighbor[cmp.Or(name, field)] = x.fields[field]
		case field == "passwordSecret":
			neighbor[field] = map[string]any{"name": x.Spec.PasswordSecret.Name, "namespace": frrNamespace}
			o.note("passwordSecret: copy the Secret to the namespace %s", frrNamespace)
		case field == "vrf":
			o.note("vrf: a BGPAdvertisement announces nothing to neighbors in a VRF")
		case !slices.Contains([]string{"myASN", "routerID", "nodeSelectors"}, field):
			o.note("%s: not converted", field)
		}
	}
	bgp := frrk8s.BGPConfig{Routers: []frrk8s.Router{{ASN: x.Spec.MyASN, ID: x.Spec.RouterID, VRF: x.Spec.VRF,
		Neighbors: []frrk8s.Neighbor{neighbor}}}}
	if name := frrk8s.Fields(neighbor).Text("bfdProfile"); p.bfdProfiles[name] != nil {
		bgp.BFDProfiles = []frrk8s.Fields{p.bfdProfiles[name]}
	} else if name != "" {
		o.note("bfdProfile: BFDProfile/%s is not in the files; add it to spec.bgp.bfdProfiles", name)
	}
	o.Spec["bgp"] = bgp
	return o
}

// advertisement converts a BGPAdvertisement of MetalLB to one of Hairpin, which selects the same
// pools and peers by their labels.
func (p *MetalLB) advertisement(x *metalAdvertisement) (*object, error) {
	o := &object{APIVersion: v1alpha1.GroupVersion().String(), Kind: "BGPAdvertisement",
		Metadata: objectMeta{Name: x.Metadata.Name},
		Spec: map[string]any{"advertisements": []string{v1alpha1.AdvertiseLoadBalancer},
			"frrConfigurationSelector": anyOf(labelPeer, x.Spec.Peers)}}
	o.selector("nodeSelector", "nodeSelectors", x.Spec.NodeSelectors)
	if len(x.Spec.Pools)+len(x.Spec.PoolSelectors) > 0 {
		pools := slices.Clone(x.Spec.Pools)
		for i := range p.pools {
			selected, err := x.selects(&p.pools[i])
			if err != nil {
				return nil, err
			}
			if name := p.pools[i].Metadata.Name; selected && !slices.Contains(pools, name) {
				pools = append(pools, name)
			}
		}
		if o.Spec["loadBalancerPoolSelector"] = anyOf(labelPool, pools); len(pools) == 0 {
			o.note("ipAddressPoolSelectors: they select no IPAddressPool of the files; this selects all")
		}
	}
	routes := []string{"aggregationLength", "aggregationLengthV6", "communities", "localPref"}
	for _, field := range routes {
		if x.fields[field] != nil {
			o.note("%s: not generated; set it in another FRRConfiguration", field)
		}
	}
	o.noteOthers(x.fields, "", append(routes, "ipAddressPools", "ipAddressPoolSelectors", "nodeSelectors", "peers")...)
	return o, nil
}

// anyOf selects objects with one of these values of a label; without values, all with the label.
func anyOf(label string, values []string) metav1.LabelSelector {
	r := metav1.LabelSelectorRequirement{Key: label, Operator: metav1.LabelSelectorOpIn, Values: values}
	if len(values) == 0 {
		r.Operator = metav1.LabelSelectorOpExists
	}
	return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{r}}
}
