// Package node describes the planned node to all features of the plan: its addresses by IP family
// (Env, Stack), the names of its OVN topology, the vocabulary of each IP family, and writers that
// add rows of OVN (Zone), flows of the gateway bridge (Bridge), addresses, routes and sysctls of
// the host (Kernel) and nft rules (Chains).
//
// Its input is a cluster.Snapshot and a node name. Env is read-only once NewEnv has returned it.
// The package decides nothing about Services, pods or egress addresses.
package node
