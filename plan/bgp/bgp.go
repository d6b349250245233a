// Package bgp decides which prefixes each node announces by BGP, and makes the FRRConfigurations
// by which frr-k8s announces them. It is pure, like package plan.
package bgp

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hairpin/api/frrk8s"
	"hairpin/api/v1alpha1"
	"hairpin/cluster"
	"hairpin/cluster/trust"
)

// Reasons why an Advertisement does not announce all its prefixes.
const (
	ReasonInvalid          = "InvalidAdvertisement"     // a field of it
	ReasonNoConfigurations = "FRRConfigurationNotFound" // it selects none
	ReasonNoNeighbors      = "NeighborNotFound"         // those that it selects have none for it
	ReasonNoNode           = "NoMatchingNodeFound"      // it selects no node
	ReasonNoPool           = "NoLoadBalancerPool"       // it is for pools only, and selects none
)

// Result is what an Advertisement announces.
type Result struct {
	Advertisement *cluster.Advertisement
	Nodes         int // that announce a prefix
	Prefixes      int // different ones
	// Reason and Message say why prefixes are not announced; empty if all are.
	Reason, Message string
}

// Plan returns the FRRConfigurations that should exist besides those of others, one per node and
// FRRConfiguration that an Advertisement selects, sorted by namespace and name; and the Results, in
// the order of s.Advertisements. It is a function of the Snapshot.
func Plan(s *cluster.Snapshot) ([]*frrk8s.FRRConfiguration, []Result) {
	if len(s.Advertisements) == 0 {
		return nil, nil
	}
	p := planner{Snapshot: s, configs: map[key]*nodeConfig{}}
	var results []Result
	for _, a := range s.Advertisements {
		results = append(results, p.advertise(a))
	}
	var out []*frrk8s.FRRConfiguration
	for _, x := range p.configs {
		if c := x.configuration(); len(c.Spec.BGP.Routers) > 0 {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(c, d *frrk8s.FRRConfiguration) int {
		return strings.Compare(c.Namespace+"/"+c.Name, d.Namespace+"/"+d.Name)
	})
	return out, results
}

// planner is the working state of Plan.
type planner struct {
	*cluster.Snapshot
	configs map[key]*nodeConfig
	vetted  *trust.Vetted // nil: not needed yet
}

// key names a generated FRRConfiguration.
type key struct {
	source cluster.Owner // the FRRConfiguration with the neighbors
	node   string
}

// nodeConfig is what a node announces to the neighbors of an FRRConfiguration, and the
// Advertisements of these prefixes.
type nodeConfig struct {
	key
	on       *cluster.Node
	from     *cluster.FRRConfiguration
	by       []*cluster.Advertisement
	prefixes map[netip.Prefix]bool
}

// advertise adds the announcements of an Advertisement.
func (p *planner) advertise(a *cluster.Advertisement) Result {
	r := Result{Advertisement: a}
	if a.Rejected {
		r.Reason, r.Message = ReasonInvalid, "a field is invalid: nothing is announced"
		return r
	}
	pooled := func(q *cluster.Pool) bool { return a.Pools.Matches(q.Labels) }
	switch selected := func(n *cluster.Node) bool { return a.Nodes.Matches(n.Egress.Labels) }; {
	case !slices.ContainsFunc(p.Nodes, selected):
		r.Reason, r.Message = ReasonNoNode, "spec.nodeSelector selects no node"
		return r
	case !a.EgressIP && !a.PodNetwork && !slices.ContainsFunc(p.Pools, pooled):
		r.Reason, r.Message = ReasonNoPool, "spec.loadBalancerPoolSelector selects no LoadBalancerPool"
		return r
	}
	var sources []source
	for _, c := range p.FRRConfigurations {
		if !c.Generated() && a.Configurations.Matches(c.Object.Labels) {
			sources = append(sources, newSource(c))
		}
	}
	if len(sources) == 0 {
		r.Reason, r.Message = ReasonNoConfigurations, "spec.frrConfigurationSelector selects no FRRConfiguration"
		return r
	}
	want, done := p.prefixes(a), map[netip.Prefix]bool{}
	var lost []string
	for _, n := range p.Nodes {
		announced := map[netip.Prefix]bool{}
		for _, c := range sources {
			if len(want[n.Name]) > 0 && c.Nodes.Matches(n.Egress.Labels) {
				p.announce(a, c, n, want[n.Name], announced)
			}
		}
		if len(announced) > 0 {
			r.Nodes++
		}
		maps.Copy(done, announced)
		for _, x := range want[n.Name] {
			if !announced[x] {
				lost = append(lost, fmt.Sprintf("%s of node %s", x, n.Name))
			}
		}
	}
	r.Prefixes = len(done)
	if len(lost) > 0 {
		r.Reason = ReasonNoNeighbors
		r.Message = fmt.Sprintf("no selected FRRConfiguration has a neighbor outside of VRFs for %s", lost[0])
		if len(lost) > 1 {
			r.Message += fmt.Sprintf(" and %d more", len(lost)-1)
		}
	}
	return r
}

// source is an FRRConfiguration that an Advertisement selects, and the families of prefixes that
// its neighbors take.
type source struct {
	*cluster.FRRConfiguration
	takes map[cluster.Family]bool
}

func newSource(c *cluster.FRRConfiguration) source {
	out := source{c, map[cluster.Family]bool{}}
	for _, r := range routers(c) {
		for _, n := range r.Neighbors {
			for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
				out.takes[cluster.FamilyOf(a)] = out.takes[cluster.FamilyOf(a)] || n.Takes(a)
			}
		}
	}
	return out
}

// announce adds the prefixes to the neighbors of an FRRConfiguration, and to announced those that a
// neighbor takes.
func (p *planner) announce(a *cluster.Advertisement, c source, n *cluster.Node, prefixes []netip.Prefix,
	announced map[netip.Prefix]bool) {
	k := key{c.Owner, n.Name}
	x := p.configs[k]
	for _, q := range prefixes {
		if !c.takes[cluster.FamilyOf(q.Addr())] {
			continue
		}
		if x == nil {
			x = &nodeConfig{key: k, on: n, from: c.FRRConfiguration, prefixes: map[netip.Prefix]bool{}}
			p.configs[k] = x
		}
		if !slices.Contains(x.by, a) {
			x.by = append(x.by, a)
		}
		announced[q], x.prefixes[q] = true, true
	}
}

// routers returns those of an FRRConfiguration that route for the nodes' own addresses.
func routers(c *cluster.FRRConfiguration) (list []frrk8s.Router) {
	for _, r := range c.Object.Spec.BGP.Routers {
		if r.VRF == "" {
			list = append(list, r)
		}
	}
	return list
}

// maxName is the largest length of the readable part of a generated object's name, below the 253
// bytes of the API.
const maxName = 200

// configuration returns the FRRConfiguration to generate. frr-k8s merges it with its source,
// because neighbors and profiles are equal.
func (x *nodeConfig) configuration() *frrk8s.FRRConfiguration {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\n%s", x.source, x.node)
	name := fmt.Sprintf("hairpin-%s-%s", x.source.Name, x.node)
	out := &frrk8s.FRRConfiguration{ObjectMeta: metav1.ObjectMeta{Namespace: x.source.Namespace,
		Name:   fmt.Sprintf("%s-%016x", strings.TrimRight(name[:min(len(name), maxName)], "-."), h.Sum64()),
		Labels: map[string]string{cluster.LabelManagedBy: cluster.ManagedBy}}}
	out.APIVersion, out.Kind = frrk8s.GroupVersion().String(), "FRRConfiguration"
	for _, a := range x.by {
		out.OwnerReferences = append(out.OwnerReferences, metav1.OwnerReference{
			APIVersion: v1alpha1.GroupVersion().String(), Kind: a.Owner.Kind, Name: a.Owner.Name,
			UID: types.UID(a.UID)})
	}
	// The label is not always the Node's name, and frr-k8s selects by labels only.
	out.Spec.NodeSelector.MatchLabels = map[string]string{
		corev1.LabelHostname: cmp.Or(x.on.Egress.Labels[corev1.LabelHostname], x.node)}
	profiles := map[string]bool{}
	for _, r := range routers(x.from) {
		to := frrk8s.Router{ASN: r.ASN, ID: r.ID}
		all := map[netip.Prefix]bool{}
		for _, n := range r.Neighbors {
			taken := maps.Clone(x.prefixes)
			maps.DeleteFunc(taken, func(q netip.Prefix, _ bool) bool { return !n.Takes(q.Addr()) })
			if len(taken) == 0 {
				continue
			}
			to.Neighbors = append(to.Neighbors, n.Announce(texts(taken)))
			profiles[frrk8s.Fields(n).Text("bfdProfile")] = true
			maps.Copy(all, taken)
		}
		if to.Prefixes = texts(all); len(to.Prefixes) > 0 {
			out.Spec.BGP.Routers = append(out.Spec.BGP.Routers, to)
		}
	}
	for _, f := range x.from.Object.Spec.BGP.BFDProfiles {
		if profiles[f.Text("name")] {
			out.Spec.BGP.BFDProfiles = append(out.Spec.BGP.BFDProfiles, f)
		}
	}
	return out
}

// texts returns prefixes as texts, sorted.
func texts(set map[netip.Prefix]bool) (list []string) {
	for _, p := range slices.SortedFunc(maps.Keys(set), netip.Prefix.Compare) {
		list = append(list, p.String())
	}
	return list
}
