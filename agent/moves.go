package agent

import (
	"context"
	"time"

	"hairpin/apply"
	"hairpin/apply/nbdb"
	"hairpin/claims"
	"hairpin/cni"
	"hairpin/datapath"
	"hairpin/datapath/nb"
	"hairpin/retry"
)

// moving is OVN of a node. When another engine serves the node's pods than before, their ports go to another bridge, and OVN has them behind one
// port of its own, or each has one again. It cannot have an address at both.
type moving struct {
	*nbdb.Target
	pods *cni.Server
}

// opening is how long Open vSwitch may take to open ports that moved.
const opening = time.Second

// Apply makes the changes of d. When ports move, OVN's change at that moment, and nothing else of it: thousands of load balancers would keep it
// busy for seconds. What OVN serves pods with is there before they come back to it, and goes after they have left.
func (m moving) Apply(ctx context.Context, d nb.Delta) error {
	if !m.pods.Astray() {
		return m.Target.Apply(ctx, d)
	}
	isPort := func(k nb.Key) bool { return k.Table == nb.TableSwitchPort }
	ports, rest := d.Part(isPort), d.Part(func(k nb.Key) bool { return !isPort(k) })
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
	ctx, cancel := context.WithTimeout(ctx, opening)
	defer cancel()
	_ = m.pods.Opened(ctx) // the next pass looks again
	return &apply.Waiting{Devices: []string{claims.ServiceBridge}}
}

// settling is how long OVN may take, at the agent's start, before pods' ports move all the same.
const settling = 15 * time.Second

// settle waits with everything until OVN's flows are in the switch, if pods' ports are to move at the agent's start: an ovn-controller that
// started beside the agent leaves those of before for 5 s, and they lead to where the ports were. It tells when it wants to be called again.
func (a *agent) settle(ctx context.Context) time.Duration {
	if a.settled || !a.ovs.Synced() || !a.supported.Load() {
		return 0
	}
	if a.settles.IsZero() {
		a.settles = time.Now()
	}
	if !a.cni.Astray() || a.restart != nil || time.Since(a.settles) > settling {
		a.settled = true
		return 0
	}
	a.beside(ctx, func(ctx context.Context) func() {
		err := a.targets.NB.Sync(ctx)
		return func() { a.settled = a.settled || err == nil }
	})
	return retry.Last / 10
}

// movePods moves pods' ports that are on another bridge than OVN takes them to be, as when somebody else moved them. It tells when it wants to be
// called again.
func (a *agent) movePods(ctx context.Context) time.Duration {
	if !a.cni.Astray() || a.applied(datapath.NB.System) != nil {
		return 0
	}
	a.beside(ctx, func(ctx context.Context) func() {
		err := a.cni.Move(ctx)
		return func() {
			if err != nil {
				a.log.Warn("cni", "error", err)
			}
		}
	})
	return retry.Last / 10
}

// applied is how the last pass ended for a system.
func (a *agent) applied(system string) error {
	for _, s := range a.pass.Status() {
		if s.System == system {
			return s.Err
		}
	}
	return nil
}
