// Package policy evaluates NetworkPolicies and ClusterNetworkPolicies: whether a packet may leave
// its source pod, whether it may reach its destination pod, and why.
//
//   - Input: the Policies, Namespaces and Pods of a cluster.Snapshot, and a Packet. The Packet is
//     the first of a connection, with the addresses and the port that the destination pod sees,
//     after the translation of a Service. Replies are not evaluated.
//   - Output: one Verdict per direction, and the Policies that select a pod.
//   - Invariants: the package does no I/O and changes nothing. Equal input gives an equal Verdict.
//
// It is the reference for what policies mean, so it is written from the text of the API: plain
// loops over the facts, with no index. It shares no code with package plan. The flows of plan must
// give the same answer. Its cost grows with the number of policies and peers: it is for
// explanations and tests, not for each packet.
//
// A direction is evaluated in tiers (network-policy-api, "Tiers"):
//
//  1. Admin: ClusterNetworkPolicies by priority. The first rule that matches decides. Pass
//     continues in the next tier.
//  2. NetworkPolicy: if any of them isolates the pod, the packet needs a rule that accepts it.
//  3. Baseline: as Admin, for pods that no NetworkPolicy isolates.
//  4. A packet that no tier decides is accepted.
//
// Three kinds of packets are accepted before all tiers: those of a pod to itself, those from the
// node of the destination pod, and those to the node of the source pod.
package policy
