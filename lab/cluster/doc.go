// Package cluster runs a whole Kubernetes cluster on one machine: a control plane and nodes with a
// real kubelet, containerd and runc each, without kube-proxy and with no network plugin but
// Hairpin, installed from its chart as a user would.
package cluster
