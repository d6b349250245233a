package agent

import (
	"context"
	"time"

	"hairpin/apply"
	"hairpin/apply/nbdb"
	"hairpin/claims"
	"hairpin/cni"
	"hairpin/datapath/nb"
)

// ovnTarget is the target for OVN. It also moves pods' ports to another bridge, after a change of
// the service engine: with openflow, OVN has one port for all pods, with ovn a port for each pod.
// OVN cannot have a pod's address at both.
type ovnTarget struct {
	*nbdb.Target
	pods *cni.Server
}

// openTimeout limits how long Open vSwitch may take to open ports that moved.
const openTimeout = time.Second

// Apply makes the changes of d. While pods' ports move, only OVN's ports change, and nothing else
// of OVN: thousands of load balancers would keep it busy for seconds. So the other rows change
// before the ports move to OVN's bridge, or in the next pass after the ports have left it. Apply
// requests that pass with an *apply.Waiting.
func (m ovnTarget) Apply(ctx context.Context, d nb.Delta) error {
	if !m.pods.Misplaced() {
		return m.Target.Apply(ctx, d)
	}
	isPort := func(k nb.Key) bool { return k.Table == nb.TableSwitchPort }
	ports, rest := d.Filter(isPort), d.Filter(func(k nb.Key) bool { return !isPort(k) })
	leave := m.pods.Bridge() != claims.IntegrationBridge
	if !leave {
		if err := m.Target.Apply(ctx, rest); err != nil {
			return err
		}
		if err := m.Target.Sync(ctx); err != nil {
			return err
		}
	}
	if err := m.pods.Move(ctx); err != nil {
		return err
	}
	if err := m.Target.Apply(ctx, ports); err != nil || !leave || rest.Empty() {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	_ = m.pods.WaitOpened(ctx) // the next pass checks again
	return &apply.Waiting{Devices: []string{claims.ServiceBridge}}
}
