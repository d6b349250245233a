package service

import (
	"net/netip"
	"slices"

	"hairpin/plan/node"
)

// Redirects reports whether the eBPF programs redirect external clients of an address. They do not
// for:
//   - Addresses with source ranges: the host serves these.
//   - NodePorts under policy Local, if pods leave through the host or if the host is an endpoint:
//     the replies, to the client's own address, would not pass the gateway router.
//   - External addresses under policy Local: the bridge changes the client's address.
//   - The gateway router's own address as an external address: the router uses it as the source
//     towards the host's own endpoints.
func Redirects(e *node.Env, x *Front, variant Variant, v netip.AddrPort) bool {
	switch {
	case x.RestrictsSources(v):
		return false
	case variant == NodePort:
		return slices.Contains(x.Stack.Redirect, v.Addr()) &&
			(!x.ExternalLocal || !e.Mode.PodsByHost && len(x.LocalHost) == 0)
	}
	return len(e.Redirect) > 0 && !x.ExternalLocal && v.Addr() != x.Stack.Address.Addr()
}
