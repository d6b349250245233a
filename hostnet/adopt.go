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

// adoption moves the machine's uplink into the gateway bridge. It does not need the API: the path
// to the API may lead over the bridge.
type adoption struct {
	err    error
	undone []time.Time // when other programs restored something, within contestFor
	part   report.Part
}

const (
	// adoptionTime limits how long Open vSwitch may take for all of it.
	adoptionTime = 5 * time.Second
	// contestMin changes by other programs within contestFor are a contest, which is reported to
	// the administrator. A DHCP client that gets another address causes fewer.
	contestMin = 4
	contestFor = 10 * time.Second
)

func UplinkConfig(c config.Config) uplink.Config {
	g := c.Cluster.Gateway
	return uplink.Config{
		Bridge: g.Interface, Device: c.Process.Uplink,
		Prefixes: slices.Concat(g.MasqueradeSubnets, DetachedPrefixes(c.Cluster)),
		// plan sets these
		Sysctls: []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/all/send_redirects"},
	}
}

// adopt makes the gateway bridge, if there is none, and moves the machine's own network to it: at
// the start, after a boot, and whenever something appears on the uplink. It reports whether
// anything had to be moved.
func (l *Scanner) adopt(ctx context.Context) (moved bool) {
	if !cluster.ModeNamed(l.config.Cluster.Gateway.Mode).Uplink {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, adoptionTime)
	defer cancel()
	did, err := uplink.Adopt(ctx, l.ovs, UplinkConfig(l.config))
	waits := (*apply.Waiting)(nil)
	coming := errors.As(err, &waits) // a notification follows when the device exists
	if coming {
		err = nil
	}
	if err != nil && errorText(err) != errorText(l.uplink.err) {
		l.log.Warn("uplink", "error", err)
	}
	now := time.Now()
	was := l.uplink.contested(now)
	l.uplink.note(now, did, err, err == nil && !coming)
	switch is := l.uplink.contested(now); {
	case is && !was:
		l.log.Warn("another program keeps restoring on the uplink what was moved to the bridge", "did", did)
	case !is:
		for _, what := range did {
			l.log.Info("uplink", "did", what)
		}
	}
	l.Report.Store(nil)
	if _, ours := uplink.Uplinks(l.ovs.View())[l.config.Cluster.Gateway.Interface]; ours {
		part := l.uplink.part
		l.Report.Store(&part)
	}
	return len(did) > 0
}

// note records the result of a scan of the uplink. Changes that were needed after everything was in
// order are drift: other programs caused them.
func (d *adoption) note(now time.Time, did []string, err error, whole bool) {
	p := &d.part
	p.System = "uplink"
	p.Reads++
	p.Written += uint64(len(did))
	if len(did) > 0 {
		p.Applies++
	}
	d.undone = slices.DeleteFunc(d.undone, func(t time.Time) bool { return now.Sub(t) > contestFor })
	if p.InSync && len(did) > 0 {
		p.Drift += uint64(len(did))
		d.undone = append(d.undone, now)
	}
	d.err, p.Error = err, errorText(err)
	if err != nil {
		p.Errors++
	}
	if p.InSync != whole || p.Since.IsZero() {
		p.InSync, p.Since = whole, now
	}
}

// contested reports whether another program keeps moving the machine's network to the uplink.
func (d *adoption) contested(now time.Time) bool {
	return len(d.undone) >= contestMin && now.Sub(d.undone[len(d.undone)-1]) < contestFor
}

// again returns when to scan again, 0 if not before something changes.
func (d *adoption) again(now time.Time) time.Duration {
	switch {
	case d.err != nil:
		return retry.Last
	case d.contested(now): // the contest may be over then
		return contestFor
	}
	return 0
}
