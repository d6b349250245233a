package packet

import "fmt"

// Cost counts the work that a packet causes on the nodes of its path. dpctl/dump-flows and the
// hosts' conntrack show the same numbers.
type Cost struct {
	// Passes counts ct actions of Open vSwitch's datapath, those for tunnels' outer packets
	// included, and InHosts.
	Passes  int
	InHosts int // of these, in conntrack of the hosts' own kernels
	Lookups int // in Open vSwitch's datapath: one when a packet enters it, and one for each recirculation
}

// ByKernel adds passes through a host's own conntrack.
func (c *Cost) ByKernel(passes int) {
	c.Passes += passes
	c.InHosts += passes
}

// String returns "conntrack passes: 2, datapath lookups: 3".
func (c Cost) String() string {
	s := fmt.Sprintf("conntrack passes: %d", c.Passes)
	if c.InHosts > 0 {
		s += fmt.Sprintf(" (%d in hosts' kernels)", c.InHosts)
	}
	return s + fmt.Sprintf(", datapath lookups: %d", c.Lookups)
}
