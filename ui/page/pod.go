package page

import (
	"net/netip"
	"net/url"
	"strings"

	"hairpin/cluster"
	"hairpin/policy"
)

// podView is a pod with its policies.
type podView struct {
	Name, Node, NodeLink, WalkFrom string
	// JSONLink is the address of the policies alone, Command prints them in a terminal.
	JSONLink, Command string
	Addresses         []netip.Addr
	Enforced          bool
	Directions        []directionView
}

type directionView struct {
	Title, Peers string
	policy.Description
}

// podPath is the page of a pod.
func podPath(o cluster.Owner) string {
	return "/pod/" + url.PathEscape(o.Namespace) + "/" + url.PathEscape(o.Name)
}

// Pod renders the page of a pod: the policies that select it.
func Pod(f Frame, p *policy.PodDescription, problems []string) ([]byte, error) {
	v := &podView{Name: "pod/" + p.Pod, Node: p.Node, NodeLink: nodePath(p.Node), Addresses: p.Addresses,
		Enforced: p.Enforced, WalkFrom: Query{From: "pod/" + p.Pod}.Link(),
		Command:    command("policies", f.Flags, p.Pod),
		Directions: []directionView{{"Ingress", "From", p.Ingress}, {"Egress", "To", p.Egress}}}
	namespace, name, _ := strings.Cut(p.Pod, "/")
	v.JSONLink = podPath(cluster.Owner{Namespace: namespace, Name: name}) + "/policies.json"
	page := &view{Frame: f, Title: v.Name, Pod: v}
	return page.render(problems)
}
