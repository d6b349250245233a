package ofctl

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"hairpin/retry"
)

// integration is the state of Config.Integration, whose flows ovn-controller writes. ovn-controller
// compares its desired flows with those that it wrote, never with the bridge's. Flows that another
// program removed stay missing until ovn-controller reconnects to the bridge.
type integration struct {
	mu        sync.Mutex
	instance  string    // the ovs-vswitchd instance that was asked
	filled    bool      // the bridge had the flows during this instance
	since     time.Time // when they were first found missing; zero: they are present
	signalled bool      // the last signal was that the flows are lost

	rewrites retry.Backoff // of reconnects of ovn-controller
}

// How long flows must be missing to count as lost: flows that the bridge had (lostAfter), because
// ovn-controller itself removes and rewrites all of them when it connects, and flows of a bridge
// that had none yet (emptyAfter), as at the start of a node.
const (
	lostAfter  = time.Second
	emptyAfter = 10 * time.Second
)

// Times between two attempts to make ovn-controller rewrite its flows. A rewrite takes a second or
// two with 10 000 Services, and several times that on a busy machine.
const (
	firstRewrite = 5 * time.Second
	lastRewrite  = time.Minute
)

// sentinelTables lists tables that are never empty once a node has a logical port: input from
// ports, the start of OVN's ingress pipeline, and output to ports (OFTABLE_PHY_TO_LOG,
// OFTABLE_LOG_INGRESS_PIPELINE and OFTABLE_LOG_TO_PHY of OVN).
var sentinelTables = [...]uint8{0, 8, 65}

// NoFlows is the error of a bridge that has lost the flows of its own controller, ovn-controller.
type NoFlows struct {
	Bridge string
	Since  time.Time
}

func (e *NoFlows) Error() string {
	return fmt.Sprintf("%s lost OVN's flows at %s, and ovn-controller has not written them again: "+
		"traffic by OVN is dropped",
		e.Bridge, e.Since.Format("15:04:05"))
}

// lost returns the error when the flows have been missing for long enough.
func (x *integration) lost(bridge string) *NoFlows {
	limit := emptyAfter
	if x.filled {
		limit = lostAfter
	}
	if x.since.IsZero() || time.Since(x.since) < limit {
		return nil
	}
	return &NoFlows{bridge, x.since}
}

// IntegrationError returns a *NoFlows while the integration bridge lacks OVN's flows.
func (t *Target) IntegrationError() error {
	x := &t.integration
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.lost(t.cfg.Integration); e != nil {
		return e
	}
	return nil
}

// checkIntegration asks the integration bridge whether it has flows, and signals when that changed.
func (t *Target) checkIntegration(ctx context.Context) {
	if t.cfg.Integration == "" {
		return
	}
	instance, err := t.Instance()
	if err != nil {
		return
	}
	filled, err := t.tablesFilled(ctx, t.cfg.Integration)
	if err != nil {
		return // ovs-vswitchd or the bridge is missing, which is reported elsewhere
	}
	x := &t.integration
	x.mu.Lock()
	if x.instance != instance {
		x.instance, x.filled, x.since = instance, false, time.Time{}
	}
	switch {
	case filled:
		x.filled, x.since = true, time.Time{}
		x.rewrites.Done()
	case x.since.IsZero():
		x.since = time.Now()
	}
	lost := x.lost(t.cfg.Integration) != nil
	changed := lost != x.signalled
	x.signalled = lost
	x.mu.Unlock()
	if changed {
		t.changed.Notify()
	}
}

// readIntegration returns the integration bridge when it lacks OVN's flows.
func (t *Target) readIntegration(ctx context.Context) []string {
	if t.IntegrationError() == nil {
		return nil
	}
	t.checkIntegration(ctx) // the last check may be checkInterval ago
	if t.IntegrationError() == nil {
		return nil
	}
	return []string{t.cfg.Integration}
}

// rewrite makes ovn-controller reconnect to the integration bridge, if bridges has it, which makes
// ovn-controller write all of its flows. It also makes ovn-northd compute the logical flows again:
// another program may have deleted them from the Southbound database while no agent ran. It still
// returns a *NoFlows: a later Read finds out whether the flows are back.
func (t *Target) rewrite(ctx context.Context, bridges []string) error {
	if len(bridges) == 0 {
		return nil
	}
	x := &t.integration
	x.mu.Lock()
	now := time.Now()
	due := x.rewrites.Due(now)
	if due {
		x.rewrites.Failed(now)
	}
	x.mu.Unlock()
	if due {
		t.log.Warn("making ovn-controller write its flows again", "bridge", t.cfg.Integration)
		if t.cfg.Recompute != nil {
			if err := t.cfg.Recompute(ctx); err != nil { // ovn-controller may have them nevertheless
				t.log.Warn("recompute logical flows", "error", err)
			}
		}
		if err := t.ReconnectController(ctx); err != nil {
			return err
		}
	}
	return t.IntegrationError()
}

// tablesFilled reports whether all of sentinelTables have flows.
func (t *Target) tablesFilled(ctx context.Context, bridge string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	tables, err := t.tables(ctx, bridge)
	empty := func(table uint8) bool { return tables[table].Flows == 0 }
	return err == nil && !slices.ContainsFunc(sentinelTables[:], empty), err
}
