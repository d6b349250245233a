// Package chaos injects faults at random into a whole cluster (package cluster) under client
// traffic, several at once, and checks that nothing else fails.
//
// A seed determines the faults: [Plan] returns its schedule. A run has a workload of Services,
// EgressIPs, load balancer addresses and NetworkPolicies, and clients in pods, on hosts and outside
// that connect all the time. [Violations] compares the result of each connection with the faults of
// that moment: a fault excuses failures of the paths that it breaks, until some seconds after its
// end. Nothing excuses a connection that a policy denies, a wrong endpoint, or a wrong source
// address. After the last fault, every node must be in sync within 30 seconds, and nothing may have
// leaked.
package chaos
