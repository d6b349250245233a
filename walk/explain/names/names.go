// Package names has the names that explanations use for pods, hosts, endpoints and other objects.
//
// Input: facts about the cluster. Output: text, in the words of the command line (pod/default/web,
// host/node-a) or in those of a sentence (Pod default/web).
//
// Invariants: commands print a name in the form in which they accept it. Long lists are shortened.
package names

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
)

// Pod returns "pod/default/web", as on the command line.
func Pod(o cluster.Owner) string { return "pod/" + o.Namespace + "/" + o.Name }

// Object returns "Service default/web", for a sentence.
func Object(o cluster.Owner) string { return strings.Replace(o.String(), "/", " ", 1) }

// Holder returns the pod (pod/NAMESPACE/NAME) or host (host/NODE) that has an address, and its
// node. Both are empty if none has it.
func Holder(s *cluster.Snapshot, a netip.Addr) (name, node string) {
	for _, p := range s.Pods {
		if slices.Contains(p.IPs, a) {
			return Pod(p.Owner), p.Node
		}
	}
	for _, n := range s.Nodes {
		if n.HasAddress(a) || slices.Contains(n.Addresses, a) {
			return "host/" + n.Name, n.Name
		}
	}
	return "", ""
}

// EndpointNode returns the node of an endpoint; empty if it is not known.
func EndpointNode(s *cluster.Snapshot, b *cluster.Backend) string {
	if b.Node != "" {
		return b.Node
	}
	_, node := Holder(s, b.Addr)
	return node
}

// EndpointState returns whether an endpoint is ready, terminating or neither.
func EndpointState(b *cluster.Backend) string {
	switch {
	case b.Ready:
		return "ready"
	case b.Serving && b.Terminating:
		return "terminating"
	}
	return "not ready"
}

// Ports returns the ports of Frontends, as "80/tcp (http), 443/tcp".
func Ports(list []*cluster.Frontend) string {
	var words []string
	for _, f := range list {
		w := fmt.Sprintf("%d/%s", f.Port, f.Protocol)
		if f.PortName != "" {
			w += " (" + f.PortName + ")"
		}
		if !slices.Contains(words, w) {
			words = append(words, w)
		}
	}
	return strings.Join(words, ", ")
}

// List returns "a, b and c". Of a long list, it has the first ones, and how many more there are.
func List(words []string) string {
	const most = 5
	if n := len(words); n > most {
		words = append(slices.Clone(words[:most-1]), fmt.Sprintf("%d more", n-most+1))
	}
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " and " + words[n-1]
	}
	return strings.Join(words, "")
}
