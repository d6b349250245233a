package hostnet

import (
	"context"
	"errors"
	"slices"
	"time"

	"hairpin/apply"
	"hairpin/cluster"
	"hairpin/config"
	"hairpin/hostnet/uplink"
	"hairpin/report"
	"hairpin/retry"
)

// uplinkState is the state of the move of the machine's uplink into the gateway bridge. The move
// does not need the API: the path to the API may lead over the bridge.
type uplinkState struct {
	err      error
	reverted []time.Time // when the agent repaired what other programs had reverted, within contestFor
	part     report.Part
}

const (
	// adoptionTime limits the move, and changes for the gateway mode.
	adoptionTime = 5 * time.Second
	// contestMin reverts by other programs within contestFor are a contest, which is reported to
	// the administrator. A DHCP client that gets another address causes fewer.
	contestMin = 4
	contestFor = 10 * time.Second
)

// UplinkConfig returns the configuration of the move.
func UplinkConfig(c config.Config) uplink.Config {
	g := c.Cluster.Gateway
	return uplink.Config{
		Bridge: g.Interface, Device: c.Process.Uplink,
		Prefixes: slices.Concat(g.MasqueradeSubnets, DetachedPrefixes(c.Cluster)),
		// the State of every node sets these (plan/gateway)
		Sysctls: []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/all/send_redirects"},
	}
}

// adopt makes the gateway bridge, if there is none, and moves the machine's own network to it: at
// the start, after a boot, and whenever something appears on the uplink. It reports whether
// anything had to be moved.
func (sc *Scanner) adopt(ctx context.Context) (moved bool) {
	if !cluster.ModeNamed(sc.config.Cluster.Gateway.Mode).Uplink {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, adoptionTime)
	defer cancel()
	did, err := uplink.Adopt(ctx, sc.ovs, UplinkConfig(sc.config))
	waiting := errors.As(err, new(*apply.Waiting)) // for a device; a notification follows when it exists
	if waiting {
		err = nil
	}
	if err != nil && errorText(err) != errorText(sc.uplink.err) {
		sc.log.Warn("move the uplink into the gateway bridge", "error", err)
	}
	now := time.Now()
	wasContested := sc.uplink.contested(now)
	sc.uplink.record(now, did, err, err == nil && !waiting)
	switch {
	case !sc.uplink.contested(now):
		for _, what := range did {
			sc.log.Info("moved the uplink into the gateway bridge", "did", what)
		}
	case !wasContested: // later steps of the contest are not logged
		sc.log.Warn("another program keeps restoring on the uplink what was moved to the bridge", "did", did)
	}
	var part *report.Part
	if _, ours := uplink.Uplinks(sc.ovs.View())[sc.config.Cluster.Gateway.Interface]; ours {
		part = new(sc.uplink.part)
	}
	sc.Report.Store(part)
	return len(did) > 0
}

// record records the result of adopt. Changes that were needed although the uplink was in sync are
// drift: other programs caused them.
func (u *uplinkState) record(now time.Time, did []string, err error, inSync bool) {
	p := &u.part
	p.System = "uplink"
	p.Reads++
	p.Written += uint64(len(did))
	if len(did) > 0 {
		p.Applies++
	}
	u.reverted = slices.DeleteFunc(u.reverted, func(t time.Time) bool { return now.Sub(t) > contestFor })
	if p.InSync && len(did) > 0 {
		p.Drift += uint64(len(did))
		u.reverted = append(u.reverted, now)
	}
	u.err, p.Error = err, errorText(err)
	if err != nil {
		p.Errors++
	}
	if p.InSync != inSync || p.Since.IsZero() {
		p.InSync, p.Since = inSync, now
	}
}

// contested reports whether another program keeps moving the machine's network back to the uplink.
// It also ends without another call of record, when the last repair is old.
func (u *uplinkState) contested(now time.Time) bool {
	return len(u.reverted) >= contestMin && now.Sub(u.reverted[len(u.reverted)-1]) < contestFor
}

// nextScan returns how long to wait before the next scan that nothing requests; 0: none is needed.
func (u *uplinkState) nextScan(now time.Time) time.Duration {
	switch {
	case u.err != nil:
		return retry.Last
	case u.contested(now): // the contest may be over then
		return contestFor
	}
	return 0
}
