// Package egress plans EgressIPs and EgressServices: the routes of selected pods to the nodes that
// have their egress addresses, the translation there, by OVN or by the host, and what a node does
// while an address moves to another node.
//
// Which node has which address is decided by the controller and read from the objects' status.
package egress
