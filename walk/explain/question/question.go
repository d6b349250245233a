// Package question resolves a question about a packet, such as "host/node-a to svc/default/web", to
// the packet and the place where it starts.
//
// Input: a Question, which has the words of the command line, and a Snapshot. Output: a Request, or
// a BadArgument that names the word that makes no sense in this cluster.
//
// Invariants: Resolve changes neither input. Equal questions in equal clusters give equal packets.
package question

import "hairpin/cluster"

// Question is a question about a packet, in the form of the command line.
type Question struct {
	From string // one of FromForms
	To   string // one of ToForms
	// DefaultNamespace is that of names without one; empty: default.
	DefaultNamespace string

	Protocol cluster.Protocol // 0: TCP, if the Service has such a port
	Family   cluster.Family   // 0: that of the addresses in the question, else IPv4 if the Service has it
	FromPort uint16           // 0: 32768
	Endpoint string           // which endpoint to follow: ADDRESS, ADDRESS:PORT, pod/… or host/…; empty: the first
	NodePort bool             // send to the Service's NodePort
	// Via is a node. It selects the node of a NodePort, the node for an external packet to another
	// address, or the egress node of a pod's packet if several are possible.
	Via string
}
