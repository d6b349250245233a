package netpolicy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"hairpin/cluster"
)

// Direction is that of a packet, as its pod sees it.
type Direction uint8

// The directions.
const (
	Egress Direction = iota
	Ingress
)

var directions = [...]Direction{Egress, Ingress}

// part returns the part of a Policy for the direction.
func (d Direction) part(p *cluster.Policy) *cluster.PolicyDirection {
	if d == Egress {
		return &p.Egress
	}
	return &p.Ingress
}

// peers is a set of peers of rules, as an expression.
type peers struct {
	pods *cluster.PodSelector
	// port restricts pods to those with a container port of that name, protocol and number; zero:
	// all.
	port   cluster.PodPort
	blocks []netip.Prefix // with pods: of their addresses, those within; nil: all
	nodes  *cluster.Selector
}

// text identifies the expression.
func (p *peers) text() string {
	if p.nodes != nil {
		return string(appendRequirements([]byte("nodes having"), *p.nodes))
	}
	b := []byte("blocks")
	for _, r := range p.blocks {
		b = r.AppendTo(append(b, ' '))
	}
	if p.pods == nil {
		return string(b)
	}
	b = appendSelector(append(b, " pods"...), p.pods)
	if p.port != (cluster.PodPort{}) {
		b = append(append(b, " with "...), p.port.Name...)
		b = append(append(b, '/'), p.port.Protocol.String()...)
		b = strconv.AppendUint(append(b, '/'), uint64(p.port.Port), 10)
	}
	return string(b)
}

// everyPod selects all pods, also those of namespaces that are not known yet.
var everyPod = &cluster.PodSelector{}

func appendSelector(b []byte, s *cluster.PodSelector) []byte {
	if s == everyPod {
		return append(b, " everywhere"...)
	}
	if s.Namespace != "" {
		b = append(append(b, " in "...), s.Namespace...)
	} else {
		b = appendRequirements(append(b, " in"...), s.Namespaces)
	}
	return appendRequirements(append(b, " having"...), s.Pods)
}

func appendRequirements(b []byte, s cluster.Selector) []byte {
	for _, r := range s.Requirements {
		b = append(append(b, ' '), r.Key...)
		b = append(append(b, ' '), r.Operator...)
		b = append(append(append(b, '('), strings.Join(r.Values, ",")...), ')')
	}
	return b
}

// selectsPod reports whether the expression selects a pod. namespace is nil if it is not known.
func (p *peers) selectsPod(pod *cluster.Pod, namespace *cluster.Namespace) bool {
	if p.pods == nil || !selects(p.pods, pod, namespace) {
		return false
	}
	return p.port == (cluster.PodPort{}) || slices.Contains(pod.Ports, p.port)
}

// selects reports whether a selector selects a pod. namespace is nil if it is not known: then only
// a selector that names the namespace may select the pod.
func selects(s *cluster.PodSelector, pod *cluster.Pod, namespace *cluster.Namespace) bool {
	if s == everyPod {
		return true
	}
	if s.Namespace != "" {
		return s.Namespace == pod.Owner.Namespace && s.Pods.Matches(pod.Labels)
	}
	return namespace != nil && s.Selects(namespace, pod.Labels)
}

// Selects reports whether a Policy applies to a pod in some direction.
func Selects(s *cluster.Snapshot, p *cluster.Policy, pod *cluster.Pod) bool {
	return (p.Ingress.Isolates || p.Egress.Isolates || len(p.Ingress.Rules)+len(p.Egress.Rules) > 0) &&
		selects(&p.Subject, pod, cluster.NamespaceNamed(s.Namespaces, pod.Owner.Namespace))
}

// addresses returns what a selected pod may send from, and receive at.
func (p *peers) addresses(pod *cluster.Pod) (list []netip.Prefix) {
	for _, a := range slices.Concat(pod.IPs, pod.Extra) {
		if p.blocks == nil || slices.ContainsFunc(p.blocks, func(r netip.Prefix) bool { return r.Contains(a) }) {
			list = append(list, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list)
}

// set is a set of peers that some Profile names, for rules of one Place.
type set struct {
	peers
	place     Place
	key       string // text of place, action and peers
	direction Direction
	id        uint32
	users     int // Profiles
}
