// Package oracle holds no code: its tests compare package policy with two evaluators of other
// projects, the matcher of cyclonus and that of kube-network-policies, on random clusters and on
// the cases of cyclonus. It is a module of its own, so that Hairpin does not depend on them.
package oracle
