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

// Mode is a gateway mode: what it decides about a node's way to the world. Whoever depends on the
// mode asks for a decision, never for its name, so another mode is another row of modes.
// docs/user/gateway-modes.md has the table.
type Mode struct {
	Name string

	// Uplink: the gateway bridge has the node's uplink, and with it the node's address, its default
	// gateways and the tunnels of a userspace datapath. Else these are the host's, the bridge has
	// an address of its own, and what the gateway router sends beyond the node is the host's to
	// route.
	Uplink bool
	// PodsByHost: pods leave by the management port and the host's routes, and its nft does the
	// SNAT. Else both are the gateway router's.
	PodsByHost bool
	// ClientsByHost: the host's nft leads clients outside to Services. Else flows of the gateway
	// bridge lead them to the gateway router; then PodsByHost must be false: under policy Local, an
	// endpoint's reply must meet the NAT that the request met.
	ClientsByHost bool
	// ServicesByHost: the host's routes and firewall decide about what Services have for endpoints
	// that are no pods, wherever these are. Else the gateway router's routes do, where it has a
	// default gateway.
	ServicesByHost bool
}

// modes are all gateway modes, the default first.
var modes = []Mode{
	{Name: ModeShared, Uplink: true},
	{Name: ModeLocal, Uplink: true, PodsByHost: true, ClientsByHost: true, ServicesByHost: true},
	{Name: ModeDetached, PodsByHost: true, ClientsByHost: true, ServicesByHost: true},
}

// Modes returns all gateway modes, the default first.
func Modes() []Mode { return slices.Clone(modes) }

// ModeNames returns their names.
func ModeNames() []string {
	var names []string
	for _, m := range modes {
		names = append(names, m.Name)
	}
	return names
}

// ModeNamed returns the mode of a name; of one that is no mode's, the default.
func ModeNamed(name string) Mode {
	if i := slices.IndexFunc(modes, func(m Mode) bool { return m.Name == name }); i > 0 {
		return modes[i]
	}
	return modes[0]
}

// ModeOf returns a node's mode: what the node says of itself, else what the configuration says.
func (c *Config) ModeOf(n *Node) Mode { return ModeNamed(cmp.Or(n.Gateway.Mode, c.Gateway.Mode)) }

// DistributedPort reports whether nodes have a distributed gateway port. With EngineOpenFlow the
// host gets to Services by a bridge that needs none.
func (c *Config) DistributedPort() bool {
	return c.Gateway.NodeLocal == LocalDGP && c.ServiceEngine != EngineOpenFlow
}
