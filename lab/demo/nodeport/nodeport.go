// Package nodeport is the table of the twelve paths to a NodePort. The demo's matrix sends packets
// along them, and a test of plan walks them in every gateway mode. docs/user/node-ports.md is
// generated from it.
package nodeport

import (
	"fmt"
	"strings"
)

// Case is one path: source, policy, and kind of endpoint on the node that the client uses.
type Case struct {
	Number int
	From   Place
	Local  bool // externalTrafficPolicy
	Host   bool // the endpoint is on the node's host, else in a pod on it
	Sees   Source
	// Masqueraded: Antrea's design (docs/design/origins.md) allows a masqueraded source, else it
	// requires the client's.
	Masqueraded bool
	Why         string
}

// Place is the origin of a packet.
type Place string

// The places.
const (
	Outside   Place = "outside"   // a machine that is not a node
	Localhost Place = "localhost" // the node itself, to each of its own addresses, 127.0.0.1 and ::1
	Pod       Place = "pod"       // a pod on the node
)

// Source is what the endpoint sees as the sender's address.
type Source string

// The sources.
const (
	Sender     Source = "the client"
	Join       Source = "join address"       // of the node's gateway router: 100.64.0.x, fd98::x
	Masquerade Source = "masquerade address" // of the gateway router as its host knows it: 169.254.169.1, fd69::1
)

// Cases returns the twelve, in their order. They are the same in the gateway modes shared, local
// and detached, over TCP, UDP and SCTP, IPv4 and IPv6.
func Cases() []Case {
	const (
		router   = "`br-svc` load-balances and SNATs, so that the pod's reply returns to it"
		loop     = "`br-svc` sends it back to the host, SNATed to the masquerade address"
		kept     = "only the node's own endpoints are used; nothing changes the source"
		keptHost = "the host's nft DNATs to its own endpoint; nothing changes the source"
		ignored  = "the policy does not apply to the node itself; "
		podKept  = "`br-svc` load-balances; nothing changes the source"
	)
	return []Case{
		{1, Outside, false, false, Join, true, router},
		{2, Outside, true, false, Sender, false, kept},
		{3, Outside, false, true, Masquerade, true, loop},
		{4, Outside, true, true, Sender, false, keptHost},
		{5, Localhost, false, false, Join, true, router},
		{6, Localhost, true, false, Join, true, ignored + router},
		{7, Localhost, false, true, Masquerade, true, loop},
		{8, Localhost, true, true, Masquerade, true, ignored + loop},
		{9, Pod, false, false, Sender, true, podKept},
		{10, Pod, true, false, Sender, false, podKept},
		{11, Pod, false, true, Sender, true, podKept},
		{12, Pod, true, true, Sender, false, podKept},
	}
}

// Policy is the case's externalTrafficPolicy.
func (c Case) Policy() string {
	if c.Local {
		return "Local"
	}
	return "Cluster"
}

// Endpoint is the case's kind of endpoint.
func (c Case) Endpoint() string {
	if c.Host {
		return "host"
	}
	return "pod"
}

// Markdown returns the table.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| no. | client | policy | endpoint | endpoint sees | because |\n|---|---|---|---|---|---|\n")
	for _, c := range Cases() {
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s | %s |\n", c.Number, c.From, c.Policy(), c.Endpoint(), c.Sees, c.Why)
	}
	return b.String()
}
