package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Pod may send from extra addresses, as keepalived must, if the annotation of its Namespace
// allows them: only administrators may change Namespaces. Both annotations are Hairpin's.
const (
	AnnotationExtraAddresses = "k8s.ovn.org/extra-addresses"      // of a Pod: "10.244.1.200, fd00:10:244:1::200"
	AnnotationExtraRanges    = "k8s.ovn.org/extra-address-ranges" // of a Namespace: "10.244.1.192/27"
)

// mostExtra is the largest number of extra addresses of a Pod: each needs flows for port security.
const mostExtra = 16

// annotationList reads the list of an annotation, separated by commas or spaces.
func annotationList[T any](problems *Problems, owner Owner, o *metav1.ObjectMeta, annotation string,
	parse func(string) (T, error)) (list []T) {
	for word := range strings.FieldsFuncSeq(o.Annotations[annotation],
		func(r rune) bool { return r == ',' || unicode.IsSpace(r) }) {
		if v, err := parse(word); err == nil {
			list = append(list, v)
		} else {
			problems.Add(owner, "metadata.annotations["+annotation+"]", "%v", err)
		}
	}
	return list
}

// applyExtra gives Pods the extra addresses that they request and may have, and adds the reasons
// for the rejected ones to denied. A Pod that requests none is returned unchanged.
func (s *Store) applyExtra(pods []*Pod, denied *[]Problem) []*Pod {
	if len(s.asking) == 0 {
		return pods
	}
	out := slices.Clone(pods)
	for i, p := range pods {
		if len(p.Asks) == 0 {
			continue
		}
		allowed, problems := s.allowedExtra(p)
		*denied = append(*denied, problems...)
		if len(allowed) == 0 {
			continue
		}
		if with := s.extended[p.Owner]; with != nil && with.equalsPlain(p) && slices.Equal(with.Extra, allowed) {
			out[i] = with
			continue
		}
		with := *p
		with.Extra = allowed
		s.extended[p.Owner], out[i] = &with, &with
	}
	return out
}

// forgetExtra forgets the extra addresses of a Pod.
func (s *Store) forgetExtra(o Owner) {
	delete(s.asking, o)
	delete(s.extended, o)
}

// equalsPlain reports whether p, without its extra addresses, equals q.
func (p *Pod) equalsPlain(q *Pod) bool {
	without := *p
	without.Extra = nil
	return same(&without, q)
}

// allowedExtra splits the addresses that a Pod requests into allowed ones and problems.
func (s *Store) allowedExtra(p *Pod) (allowed []netip.Addr, problems []Problem) {
	var ranges []netip.Prefix
	for _, n := range s.namespaces.of[namespaceOwner(p.Owner.Namespace)] {
		ranges = n.ExtraRanges
	}
	for i, a := range p.Asks {
		why := s.guard.extra(a)
		switch {
		case i >= mostExtra:
			why = fmt.Sprintf("more than %d addresses", mostExtra)
		case why == "" && !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) }):
			why = fmt.Sprintf("%s is not within annotation %s of Namespace/%s", a, AnnotationExtraRanges,
				p.Owner.Namespace)
		case why == "" && s.config.podRange(a) && !s.onNode(p.Node, a):
			why = fmt.Sprintf("%s is in the range of pods, but not of node %s", a, p.Node)
		}
		if why != "" {
			problems = append(problems, Problem{
				Owner: p.Owner, Field: "metadata.annotations[" + AnnotationExtraAddresses + "]", Message: why +
					": the pod must not use it",
			})
		} else {
			allowed = append(allowed, a)
		}
		if i >= mostExtra {
			break
		}
	}
	return allowed, problems
}

// onNode reports whether an address is in the range of a node's pods.
func (s *Store) onNode(node string, a netip.Addr) bool {
	for _, n := range s.nodes.of[nodeOwner(node)] {
		if c := n.PodCIDR(FamilyOf(a)); c.IsValid() && c.Contains(a) {
			return true
		}
	}
	return false
}

func (c *Config) podRange(a netip.Addr) bool {
	return slices.ContainsFunc(c.ClusterSubnets, func(s ClusterSubnet) bool { return s.CIDR.Contains(a) })
}

// extra returns why no pod may have an address as an extra one; empty if a pod may.
func (g *guard) extra(a netip.Addr) string {
	if why := g.endpoint(a); why != "" {
		return why
	}
	if n, ok := g.vetted.Hosts.Get(a); ok {
		return fmt.Sprintf("%s is an address of node %s", a, n)
	}
	if e := g.egress[a]; e != nil {
		return fmt.Sprintf("%s is an address of %s", a, e.Owner)
	}
	return ""
}
