package vswitch

import (
	"context"
	"errors"
	"slices"
	"time"

	"hairpin/apply"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/ovs"
	"hairpin/egress/wire"
	"hairpin/retry"
)

// announcedMAC is the gateway bridge's Ethernet address that was announced to neighbors.
type announcedMAC struct {
	mac   cluster.MAC
	since time.Time // when it was announced first
	again bool      // it was announced once more
}

// announceAgain is when to announce once more: Open vSwitch ignores a reply (ARP or ND) for which
// its datapath has a flow, and the flow stays for 10 s.
const announceAgain = 12 * time.Second

// AnnounceMAC announces the gateway bridge's Ethernet address to neighbors that may know another
// one. Open vSwitch makes the bridge's device with an address of its own choice, and sets the
// wanted one a moment later. A neighbor that learned the first would keep it; tunnels of Open
// vSwitch on the userspace datapath keep it for 15 minutes. It returns when to call it again.
func (v *Switch) AnnounceMAC(ctx context.Context, f *Facts) time.Duration {
	g, nodes, done := f.Gateway, f.Snapshot.Nodes, v.announced
	if v.Starting() {
		return 0
	}
	if g.MAC == done.mac {
		if done.again {
			return 0
		}
		if wait := announceAgain - time.Since(done.since); wait > 0 {
			return wait
		}
	}
	var sent bool
	v.background.Do(ctx, func(context.Context) (err error) {
		sent, err = wire.AnnounceBridge(g, nodes)
		return err
	}, func(err error) {
		switch {
		case sent && v.announced != done: // Open vSwitch was released meanwhile
		case sent && g.MAC == done.mac:
			v.announced.again = true
		case sent:
			v.announced = announcedMAC{mac: g.MAC, since: time.Now()}
		case err != nil:
			v.log.Warn("announce the gateway bridge's Ethernet address to neighbors", "error", err)
		}
	})
	return retry.Last / 10
}

// deviceTime limits how long ovs-vswitchd may take to make the device of a port.
const deviceTime = 2 * time.Second

// RemakePorts removes Hairpin's internal ports that have no device from Open vSwitch's database.
// The next pass adds them again, and ovs-vswitchd makes the device. Otherwise ovs-vswitchd keeps a
// port whose device another program has deleted, renamed or moved to another network namespace. It
// returns when to call it again.
func (v *Switch) RemakePorts(ctx context.Context, status []apply.Status, want map[string]ovs.Port) time.Duration {
	if v.Starting() {
		return 0
	}
	ports, since := lostPorts(status, want)
	if len(ports) == 0 {
		v.remaking.Done()
		return 0
	}
	now := time.Now()
	if wait := deviceTime - now.Sub(since); wait > 0 {
		return wait
	}
	if !v.remaking.Due(now) {
		return v.remaking.Wait(now)
	}
	v.background.Do(ctx, func(ctx context.Context) error { return v.targets.Bridge.RemovePorts(ctx, ports) },
		func(err error) {
			v.remaking.Failed(time.Now()) // after a success, too: the devices are not there yet
			log := v.log.With("ports", ports)
			if err != nil {
				log.Warn("remove ports whose devices are gone", "error", err)
			} else {
				log.Warn("removed ports whose devices are gone, to make them again")
			}
		})
	return retry.Last
}

// lostPorts returns the internal ports of Open vSwitch whose devices the host waits for, and since
// when it waits. After an error of the bridges it returns none: ports may be missing in Open
// vSwitch's database.
func lostPorts(status []apply.Status, want map[string]ovs.Port) (ports []string, since time.Time) {
	for _, s := range status {
		var waiting *apply.Waiting
		switch {
		case s.System == datapath.Bridge.System && s.Err != nil && !errors.As(s.Err, &waiting):
			return nil, since
		case s.System == datapath.Host.System && errors.As(s.Err, &waiting):
			since = s.Since
			ports = slices.DeleteFunc(slices.Clone(waiting.Devices), func(d string) bool {
				return want[d].Type != "internal"
			})
		}
	}
	return ports, since
}
