// Package scale measures what a node pays for the others. Two nodes are real: Open vSwitch, OVN,
// the agent, pods. Of all others there is what a node can see of them: their objects in a real
// Kubernetes API, as kubelets, controllers and agents write them, and on the wire a host that has
// all their addresses, answers probes and counts the tunnel packets that it gets. The cluster grows
// within one run, and what is measured at each size is one column of a table.
package scale
