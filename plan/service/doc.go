// Package service decides for each Service port (cluster.Frontend) which clients are served, from
// which endpoints and with which source address. It plans what the node's host needs for that: nft
// rules and maps, routes, stale UDP connections, and the addresses that eBPF programs redirect.
//
// An Engine writes the state for pods and external clients: package svcbridge (OpenFlow) or ovnlb
// (OVN load balancers). Both get the same Front, so a new rule of Services is added here once.
package service
