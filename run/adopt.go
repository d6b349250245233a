package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hairpin/apply"
	"hairpin/apply/uplink"
	"hairpin/cluster"
)

// adoption is the taking of the machine's uplink into the gateway bridge. It does not need the API: the way there may
// lead over the bridge.
type adoption struct {
	err   error
	moved bool // something, since ovs-vswitchd started: nothing was there before that a half-restored switch could break
}

// adoptionTime is how long Open vSwitch may take for all of it.
const adoptionTime = 5 * time.Second

func uplinkConfig(c Config) uplink.Config {
	g := c.Cluster.Gateway
	return uplink.Config{
		Bridge: g.Interface, Device: c.Process.Uplink, Prefixes: g.MasqueradeSubnets,
		Sysctls: []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/all/send_redirects"}, // see plan
	}
}

// adopt makes the gateway bridge, where nobody else has, and brings the machine's own network there: at the start, after a
// boot, and whenever something appears on the uplink.
func (a *agent) adopt(ctx context.Context) {
	if a.config.Cluster.Gateway.Mode == cluster.ModeDetached {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, adoptionTime)
	defer cancel()
	did, err := uplink.Adopt(ctx, a.ovs, uplinkConfig(a.config))
	for _, what := range did {
		a.log.Info("uplink", "did", what)
		a.adoption.moved = true
	}
	if waits := (*apply.Waiting)(nil); errors.As(err, &waits) {
		err = nil // its coming is told
	}
	if err != nil && (a.adoption.err == nil || a.adoption.err.Error() != err.Error()) {
		a.log.Warn("uplink", "error", err)
	}
	a.adoption.err = err
}

// again tells when to try it again, 0 if not before the next change.
func (d *adoption) again() time.Duration {
	if d.err == nil {
		return 0
	}
	return lastPause
}

// problem is what the administrator must know of it.
func (a *agent) uplinkProblem() []cluster.Problem {
	if a.adoption.err == nil {
		return nil
	}
	return []cluster.Problem{{
		Owner: cluster.Owner{Kind: "Node", Name: a.node}, Field: "[gateway] interface",
		Message: fmt.Sprintf("bridge %s has no uplink: %v", a.config.Cluster.Gateway.Interface, a.adoption.err),
	}}
}
