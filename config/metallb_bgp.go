package config

import (
	"cmp"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/api/frrk8s"
	"hairpin/api/v1alpha1"
)

// Labels of converted objects, with their name in MetalLB: its advertisements name pools and peers,
// those of Hairpin select them by labels.
const (
	labelPool = "metallb.io/pool"
	labelPeer = "metallb.io/peer"
)

// frrNamespace is the namespace in which the manifests of frr-k8s install it.
const frrNamespace = "frr-k8s-system"

// metalPeer is a BGPPeer. The neighbor gets its other fields.
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
	all frrk8s.Fields // the fields of spec
}

// neighborFields are fields of a BGPPeer, with their names in a neighbor of frr-k8s.
var neighborFields = map[string]string{"peerASN": "asn", "peerAddress": "address", "peerPort": "port",
	"sourceAddress": "sourceaddress", "dynamicASN": "", "interface": "", "holdTime": "", "keepaliveTime": "",
	"connectTime": "", "password": "", "bfdProfile": "", "enableGracefulRestart": "", "ebgpMultiHop": "",
	"disableMP": "", "dualStackAddressFamily": ""}

// peer converts a BGPPeer to an FRRConfiguration.
func (p *Pools) peer(x *metalPeer) (o object, notes []string, err error) {
	s := &spec{fields: map[string]any{}}
	s.one("nodeSelector", "nodeSelectors", x.Spec.NodeSelectors)
	neighbor := frrk8s.Neighbor{}
	for _, field := range slices.Sorted(maps.Keys(x.all)) {
		name, known := neighborFields[field]
		switch {
		case known:
			neighbor[cmp.Or(name, field)] = x.all[field]
		case field == "passwordSecret":
			neighbor[field] = map[string]any{"name": x.Spec.PasswordSecret.Name, "namespace": frrNamespace}
			s.note("passwordSecret: copy the Secret to the namespace %s", frrNamespace)
		case field == "vrf":
			s.note("vrf: a BGPAdvertisement announces nothing to neighbors in a VRF")
		case !slices.Contains([]string{"myASN", "routerID", "nodeSelectors"}, field):
			s.note("%s: not converted", field)
		}
	}
	bgp := frrk8s.BGPConfig{Routers: []frrk8s.Router{{ASN: x.Spec.MyASN, ID: x.Spec.RouterID, VRF: x.Spec.VRF,
		Neighbors: []frrk8s.Neighbor{neighbor}}}}
	if name := frrk8s.Fields(neighbor).Text("bfdProfile"); p.bfdProfiles[name] != nil {
		bgp.BFDProfiles = []frrk8s.Fields{p.bfdProfiles[name]}
	} else if name != "" {
		s.note("bfdProfile: BFDProfile/%s is not in the files; add it to spec.bgp.bfdProfiles", name)
	}
	s.fields["bgp"] = bgp
	return object{frrk8s.GroupVersion().String(), "FRRConfiguration", objectMeta{x.Metadata.Name, frrNamespace,
		map[string]string{labelPeer: x.Metadata.Name}}, s.fields}, s.notes, nil
}

// advertisement converts a BGPAdvertisement of MetalLB. Hairpin's selects the pools and peers that
// it selects now.
func (p *Pools) advertisement(x *metalAdvertisement) (o object, notes []string, err error) {
	s := &spec{fields: map[string]any{"advertisements": []string{v1alpha1.AdvertiseLoadBalancer},
		"frrConfigurationSelector": anyOf(labelPeer, x.Spec.Peers)}}
	s.one("nodeSelector", "nodeSelectors", x.Spec.NodeSelectors)
	if len(x.Spec.Pools)+len(x.Spec.PoolSelectors) > 0 {
		pools := slices.Clone(x.Spec.Pools)
		for i := range p.pools {
			is, err := x.announces(&p.pools[i])
			if err != nil {
				return o, nil, err
			}
			if name := p.pools[i].Metadata.Name; is && !slices.Contains(pools, name) {
				pools = append(pools, name)
			}
		}
		if s.fields["loadBalancerPoolSelector"] = anyOf(labelPool, pools); len(pools) == 0 {
			s.note("ipAddressPoolSelectors: they select no IPAddressPool of the files; this selects all")
		}
	}
	for _, field := range slices.Sorted(maps.Keys(x.all)) {
		switch field {
		case "ipAddressPools", "ipAddressPoolSelectors", "nodeSelectors", "peers":
		case "aggregationLength", "aggregationLengthV6", "communities", "localPref":
			s.note("%s: not generated; set it in another FRRConfiguration", field)
		default:
			s.note("%s: not converted", field)
		}
	}
	return object{v1alpha1.GroupVersion().String(), "BGPAdvertisement", objectMeta{Name: x.Metadata.Name},
		s.fields}, s.notes, nil
}

// anyOf selects objects with one of these values of a label; without values, all with the label.
func anyOf(label string, values []string) metav1.LabelSelector {
	r := metav1.LabelSelectorRequirement{Key: label, Operator: metav1.LabelSelectorOpIn, Values: values}
	if len(values) == 0 {
		r.Operator = metav1.LabelSelectorOpExists
	}
	return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{r}}
}
