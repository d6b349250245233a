package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"hairpin/apply"
	"hairpin/datapath"
	"hairpin/retry"
)

// deviceTime is how long ovs-vswitchd may take to make the device of a port.
const deviceTime = 2 * time.Second

// remakePorts removes internal ports of ours from Open vSwitch's database while the host has no device for
// them: the next pass adds them, and ovs-vswitchd makes the device. Without that, ovs-vswitchd keeps a port
// whose device another program has deleted, renamed or moved to another network namespace. It returns when
// it is to be called again.
func (a *agent) remakePorts(ctx context.Context) time.Duration {
	if a.restart != nil {
		return 0
	}
	ports, since := a.lostPorts()
	if len(ports) == 0 {
		a.remaking.Done()
		return 0
	}
	now := time.Now()
	if wait := max(deviceTime-now.Sub(since), a.remaking.Wait(now)); wait > time.Millisecond {
		return wait
	}
	a.beside(ctx, func(ctx context.Context) func() {
		err := a.targets.Bridge.RemovePorts(ctx, ports)
		return func() {
			a.remaking.Failed(time.Now()) // until the host does not wait any more
			log := a.log.With("ports", ports)
			if err != nil {
				log.Warn("remove ports whose devices are gone", "error", err)
			} else {
				log.Warn("removed ports whose devices are gone, to make them again")
			}
		}
	})
	return retry.Last
}

// lostPorts returns the internal ports that Open vSwitch has and whose devices the host waits for, and since
// when it does.
func (a *agent) lostPorts() (ports []string, since time.Time) {
	for _, s := range a.pass.Status() {
		var waiting *apply.Waiting
		switch {
		case s.System == datapath.Bridge.System && s.Err != nil && !errors.As(s.Err, &waiting):
			return nil, since
		case s.System == datapath.Host.System && errors.As(s.Err, &waiting):
			since = s.Since
			ports = slices.DeleteFunc(slices.Clone(waiting.Devices), func(d string) bool {
				return a.want.Bridge.Ports[d].Type != "internal"
			})
		}
	}
	return ports, since
}
