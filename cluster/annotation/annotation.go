// Package annotation defines the annotations of OVN-Kubernetes and of Hairpin on Nodes, Pods and
// Namespaces: their names and the format of their values.
//
// Each Format function has facts of package cluster as input and a value as output. The Parse
// function of the same annotation reads the value back. It takes any text: it omits invalid parts,
// and returns an error for each of them.
package annotation

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode"

	"hairpin/cluster"
)

// Annotations of a Node, those of OVN-Kubernetes.
const (
	NodeID    = "k8s.ovn.org/node-id"           // "7"
	HostCIDRs = "k8s.ovn.org/host-cidrs"        // ["172.18.0.3/16","172.20.0.1/32"]
	Gateway   = "k8s.ovn.org/l3-gateway-config" // {"default":{"mode":"shared",…}}
)

// Annotations of a Node that are Hairpin's.
const (
	// HostLinks has the node's links to other networks than that of its gateway bridge.
	HostLinks = "k8s.ovn.org/host-links"
	// HostRules has the policy-routing rules that are not Hairpin's. It serves only to explain
	// packets' paths.
	HostRules = "k8s.ovn.org/host-rules"
	// HostPorts has the ports that the host uses at the node's own addresses, of those that
	// LoadBalancerPools list. The node's agent writes it.
	HostPorts = "hairpin.dev/host-ports"
	// Shutdown, with any value, reports that the machine shuts down. The node's agent sets it.
	Shutdown = "hairpin.dev/shutting-down"
)

// A Pod may send from extra addresses, as keepalived must, if the annotation of its Namespace
// allows them: only administrators may change Namespaces. Both annotations are Hairpin's.
const (
	ExtraAddresses = "k8s.ovn.org/extra-addresses"      // of a Pod: "10.244.1.200, fd00:10:244:1::200"
	ExtraRanges    = "k8s.ovn.org/extra-address-ranges" // of a Namespace: "10.244.1.192/27"
)

// Field returns the path of an annotation in its object, for a Problem.
func Field(annotation string) string { return "metadata.annotations[" + annotation + "]" }

// invalid is the errors of the parts of an annotation that are not used. Its methods parse a part
// and add its errors.
type invalid []error

func (x *invalid) add(format string, args ...any) { *x = append(*x, fmt.Errorf(format, args...)) }

// maxNodeID is the largest node id: tunnel keys of ports have 15 bits, and 0 is none.
const maxNodeID = 32767

// ParseNodeID reads NodeID.
func ParseNodeID(text string) (int, []error) {
	id, err := strconv.Atoi(text)
	if err != nil || id < 1 || id > maxNodeID {
		return 0, invalid{fmt.Errorf("%q is not a number from 1 to %d", text, maxNodeID)}
	}
	return id, nil
}

// FormatHostCIDRs returns the value of HostCIDRs that parses back to list.
func FormatHostCIDRs(list []netip.Prefix) string {
	texts := make([]string, 0, len(list))
	for _, p := range list {
		texts = append(texts, p.String())
	}
	text, err := json.Marshal(texts)
	if err != nil {
		panic(err) // strings always marshal
	}
	return string(text)
}

// ParseHostCIDRs reads the output of FormatHostCIDRs.
func ParseHostCIDRs(text string) (list []netip.Prefix, errs []error) {
	var texts []string
	var wrong invalid
	if err := json.Unmarshal([]byte(text), &texts); err != nil {
		wrong.add("not a JSON list of strings: %v", err)
	}
	for _, text := range texts {
		c, ok := cluster.ParsePrefix(text)
		if !ok {
			wrong.add("%q is not an address with a prefix length", text)
			continue
		}
		list = append(list, c)
	}
	return list, wrong
}

// ParseExtraAddresses reads ExtraAddresses.
func ParseExtraAddresses(text string) ([]netip.Addr, []error) {
	return parseWords(text, cluster.ParseHostAddr)
}

// ParseExtraRanges reads ExtraRanges.
func ParseExtraRanges(text string) ([]netip.Prefix, []error) {
	return parseWords(text, netip.ParsePrefix)
}

// parseWords reads a list that is separated by commas or spaces.
func parseWords[T any](text string, parse func(string) (T, error)) (list []T, errs []error) {
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || unicode.IsSpace(r) }) {
		if v, err := parse(word); err == nil {
			list = append(list, v)
		} else {
			errs = append(errs, err)
		}
	}
	return list, errs
}
