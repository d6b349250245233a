// Package cluster defines the facts about a Kubernetes cluster that Hairpin uses, as plain values,
// and the administrator's configuration. It draws no conclusions from them.
//
// Package store makes Snapshots of these facts from Kubernetes objects. A value of a Snapshot never
// changes, so goroutines can share it without a lock. An unchanged Service keeps its *Frontend from
// one Snapshot to the next, so that a reader can detect changes by pointer. An invalid part of an
// object is a Problem in place of a fact, and does not affect other objects.
package cluster

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Owner names the object for which something exists. Every row, flow and rule carries one.
type Owner struct{ Kind, Namespace, Name string }

// String returns "Service/default/web", or "Node/node-a" for an object without a namespace.
func (o Owner) String() string {
	if o == (Owner{}) {
		return ""
	}
	if o.Namespace == "" {
		return o.Kind + "/" + o.Name
	}
	return o.Kind + "/" + o.Namespace + "/" + o.Name
}

// ParseOwner reads what String wrote; for any other text it returns the zero Owner.
func ParseOwner(s string) Owner {
	switch f := strings.Split(s, "/"); len(f) {
	case 2:
		return Owner{Kind: f[0], Name: f[1]}
	case 3:
		return Owner{Kind: f[0], Namespace: f[1], Name: f[2]}
	}
	return Owner{}
}

// Compare orders owners by kind, namespace and name.
func (o Owner) Compare(p Owner) int {
	return cmp.Or(cmp.Compare(o.Kind, p.Kind), cmp.Compare(o.Namespace, p.Namespace), cmp.Compare(o.Name, p.Name))
}

// Snapshot is the state of the cluster at one moment. All slices are sorted by name (Frontends by
// Compare), so equal clusters give equal Snapshots in any order of events. A value that did not
// change since an earlier Snapshot of the same Store is the same pointer.
type Snapshot struct {
	Config    Config
	Nodes     []*Node
	Frontends []*Frontend
	Pods      []*Pod
	// Starting are Pods that have a node but no address yet. So their labels are known before they
	// send their first packet.
	Starting   []*Pod
	Namespaces []*Namespace
	EgressIPs  []*EgressIP
	Policies   []*Policy
	Pools      []*Pool
	// LoadBalancers are the Services and EgressIPs that get their addresses from Pools.
	LoadBalancers []*LoadBalancer
	// Advertisements select what nodes announce by BGP. FRRConfigurations are the objects from
	// which frr-k8s configures FRR; only the controller has them.
	Advertisements    []*Advertisement
	FRRConfigurations []*FRRConfiguration
	Problems          []Problem // rejected while parsing
	// PodsUnread reports that Pods of all nodes are needed but not read yet, so Pods is incomplete.
	// Only the controller gets such a Snapshot. It must defer its decisions about Pods.
	PodsUnread bool
	// Received is when the oldest of the changes since the Snapshot that the reader got before
	// arrived from the API server. It is zero for Snapshots of manifests.
	Received time.Time
}

// Node returns the node of that name, or nil.
func (s *Snapshot) Node(name string) *Node { return NodeNamed(s.Nodes, name) }

// NamespaceNamed returns the namespace of that name in a list sorted by name, or nil.
func NamespaceNamed(sorted []*Namespace, name string) *Namespace {
	return named(sorted, name, func(n *Namespace) string { return n.Name })
}

// NodeNamed returns the node of that name in a list sorted by name, or nil.
func NodeNamed(sorted []*Node, name string) *Node {
	return named(sorted, name, func(n *Node) string { return n.Name })
}

// named returns the element of that name in a list sorted by name, or nil.
func named[T any](sorted []*T, name string, nameOf func(*T) string) *T {
	i, found := slices.BinarySearchFunc(sorted, name,
		func(x *T, name string) int { return strings.Compare(nameOf(x), name) })
	if !found {
		return nil
	}
	return sorted[i]
}

// Family is an IP version.
type Family uint8

// The two families. Their values are those of the IP header's version field.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families are both, IPv4 first.
var Families = [...]Family{IPv4, IPv6}

// FamilyOf returns the family of an address. An IPv4-mapped IPv6 address counts as IPv6; the parser
// rejects it.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// String returns "IPv4" or "IPv6".
func (f Family) String() string { return fmt.Sprintf("IPv%d", uint8(f)) }

// Protocol is a transport protocol of a Service port, by its IANA number.
type Protocol uint8

// The protocols of Kubernetes Services.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the lower-case name, which OVN, OpenFlow and nft use as well.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return fmt.Sprintf("protocol-%d", uint8(p))
}

// ParseProtocol reads the protocol of a port; empty: TCP.
func ParseProtocol(p corev1.Protocol) (Protocol, error) {
	switch p {
	case corev1.ProtocolTCP, "":
		return TCP, nil
	case corev1.ProtocolUDP:
		return UDP, nil
	case corev1.ProtocolSCTP:
		return SCTP, nil
	}
	return 0, fmt.Errorf("%q is not a protocol of ports (TCP, UDP, SCTP)", p)
}

// MAC is an Ethernet MAC address; the zero MAC means "none". Unlike net.HardwareAddr it can be
// compared with ==.
type MAC [6]byte

// String returns the usual lower-case form "0a:58:0a:f4:01:03".
func (m MAC) String() string { return string(m.AppendTo(make([]byte, 0, 17))) }

// AppendTo appends the text of String to b.
func (m MAC) AppendTo(b []byte) []byte {
	const digits = "0123456789abcdef"
	for i, x := range m {
		if i > 0 {
			b = append(b, ':')
		}
		b = append(b, digits[x>>4], digits[x&15])
	}
	return b
}

// ParseMAC reads the form that String writes, in either case of letters.
func ParseMAC(s string) (MAC, error) {
	var m MAC
	if len(s) != 17 {
		return m, fmt.Errorf("%q is not a MAC address", s)
	}
	for i := range m {
		b, err := hex.DecodeString(s[3*i : 3*i+2])
		if err != nil || (i < 5 && s[3*i+2] != ':') {
			return MAC{}, fmt.Errorf("%q is not a MAC address", s)
		}
		m[i] = b[0]
	}
	return m, nil
}

// MACFor derives the MAC of a pod or router port from its IP address: 0a:58 and the four bytes of
// an IPv4 address, or 0a:58 and the last four bytes of an IPv6 address; none for no address.
func MACFor(a netip.Addr) MAC {
	if !a.IsValid() {
		return MAC{}
	}
	b := a.AsSlice()
	b = b[len(b)-4:]
	return MAC{0x0a, 0x58, b[0], b[1], b[2], b[3]}
}
