// Package gateway plans the node without Services and egress addresses: its OVN topology, the
// gateway bridge, the host behind it, the tunnels to other nodes, and the guards of the pod
// network. It differs by gateway mode.
package gateway
