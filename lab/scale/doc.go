// Package scale measures how the cost of a node grows with the number of other nodes. Two nodes are
// real: Open vSwitch, OVN, the agent, pods. Of the others, only what a node can see is simulated.
// Their objects are in a real Kubernetes API, as kubelets, controllers and agents write them. A
// host has all their addresses, answers probes and counts the tunnel packets that it receives. The
// cluster grows within one run. The measurements at each size are one column of a table.
package scale
