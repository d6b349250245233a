// Package netpolicy compiles Policies for the pods of one node.
//
// Input: the Policies, Namespaces and Pods of a Snapshot, and the node's own pods. Output: which
// own pods have policies, a Profile for each direction (the rules that apply to the pod), and the
// Members of the sets of peers that these rules name. An Index keeps what it compiled, so an update
// costs what changed.
//
// Invariants:
//
//   - Equal rules of two pods are one Profile, and equal selectors in two rules are one set.
//   - The number of a Profile or a set follows from its text, not from the pods that it matches. So
//     a pod that starts, stops or is relabelled changes Members only.
//   - What is not known accepts nothing: a set without Members, a named port that no container has.
//
// It is pure and knows no flows: package svcbridge writes those.
package netpolicy
