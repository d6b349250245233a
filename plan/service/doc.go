// Package service decides for each Service port (cluster.Frontend) who is served, from which
// endpoints and with which source address. It plans what the node's host needs for that: nft rules
// and maps, routes, UDP connections to forget, and the addresses that eBPF programs redirect.
//
// What pods and external clients need is written by an Engine: package svcbridge (OpenFlow) or
// ovnlb (OVN load balancers). Both get the same Front, so a new rule of Services is added here
// once.
package service
