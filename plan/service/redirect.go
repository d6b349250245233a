package service

import (
	"net/netip"
	"slices"

	"hairpin/plan/node"
)

// Redirects reports whether the programs lead external clients to an address. To a NodePort under
// policy Local they do not where pods leave by the host, past the gateway router, nor where the
// host is an endpoint: it could not answer a client's own address by that. To an external address
// under policy Local they do not either: the bridge changes the client's address; nor to the
// gateway router's own, from which it answers as the host's own endpoint asks. What is not for
// everybody is the host's to serve, too.
func Redirects(e *node.Env, x *Front, name string, v netip.AddrPort) bool {
	switch {
	case x.RestrictsSources(v):
		return false
	case name == wayNodePort:
		return slices.Contains(x.Stack.Redirect, v.Addr()) &&
			(!x.ExternalLocal || !e.Mode.PodsByHost && len(x.LocalHost) == 0)
	}
	return len(e.Redirect) > 0 && !x.ExternalLocal && v.Addr() != x.Stack.Address.Addr()
}
