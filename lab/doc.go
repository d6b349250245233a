// Package lab runs Hairpin nodes on one machine: real Open vSwitch, real OVN, a real kernel, a real
// Kubernetes API.
//
// A [Lab] is an underlay (a network namespace with a bridge) with nodes and hosts: each [Node] has
// mount, network, process and host name namespaces of its own over an overlay of the node image,
// with the daemons of a real node at their usual paths; a [Host] is only a network namespace, for
// external clients and the API server. Whatever a lab makes is in its own namespaces and under
// /run/hairpin-lab/NAME; the machine's network is never touched.
//
// Every Node and Host is held by one process, the first of its process namespace. Ending that
// process ends everything in it. It is the same program, started again: see holder.go.
package lab
