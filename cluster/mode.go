package cluster

import (
	"cmp"
	"slices"
)

// Names of the gateway modes.
const (
	ModeShared   = "shared"
	ModeLocal    = "local"
	ModeDetached = "detached"
)

// Mode is a gateway mode: its decisions about a node's paths to and from outside the cluster. Code
// that depends on the mode checks a decision, never the name, so a new mode is only a new row of
// modes. docs/user/gateway-modes.md has the table.
type Mode struct {
	Name string

	// Uplink: the gateway bridge has the node's uplink, and with it the node's address, its default
	// gateways and the tunnels of a userspace datapath. Otherwise these are the host's, the bridge
	// has an address of its own, and the host routes packets of the gateway router that leave the
	// node.
	Uplink bool
	// PodsByHost: pods leave by the management port and the host's routes, and the host's nft does
	// SNAT. Otherwise the gateway router does both.
	PodsByHost bool
	// ClientsByHost: the host's nft directs external clients to Services. Otherwise flows of the
	// gateway bridge direct them to the gateway router. A mode without ClientsByHost must not have
	// PodsByHost: under policy Local, an endpoint's reply must pass the NAT that the request
	// passed.
	ClientsByHost bool
	// ServicesByHost: the host's routes and firewall apply to packets of Services to endpoints that
	// are not pods, on any machine. Otherwise the gateway router's routes apply, if it has a
	// default gateway.
	ServicesByHost bool
}

// modes lists all gateway modes, the default first.
var modes = []Mode{
	{Name: ModeShared, Uplink: true},
	{Name: ModeLocal, Uplink: true, PodsByHost: true, ClientsByHost: true, ServicesByHost: true},
	{Name: ModeDetached, PodsByHost: true, ClientsByHost: true, ServicesByHost: true},
}

// Modes returns all gateway modes, the default first.
func Modes() []Mode { return slices.Clone(modes) }

// ModeNames returns the names of all gateway modes, the default first.
func ModeNames() []string {
	var names []string
	for _, m := range modes {
		names = append(names, m.Name)
	}
	return names
}

// ModeNamed returns the mode with a name, or the default for an unknown name.
func ModeNamed(name string) Mode {
	if i := slices.IndexFunc(modes, func(m Mode) bool { return m.Name == name }); i > 0 {
		return modes[i]
	}
	return modes[0]
}

// ModeOf returns a node's mode: the one that the node publishes, or else the configured one.
func (c *Config) ModeOf(n *Node) Mode { return ModeNamed(cmp.Or(n.Gateway.Mode, c.Gateway.Mode)) }

// DistributedPort reports whether nodes have a distributed gateway port. With EngineOpenFlow the
// host reaches Services by a bridge that needs none.
func (c *Config) DistributedPort() bool {
	return c.Gateway.NodeLocal == LocalDGP && c.ServiceEngine != EngineOpenFlow
}
