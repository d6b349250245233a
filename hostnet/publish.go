package hostnet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/ovsdb"
	"hairpin/retry"
	"hairpin/signal"
)

// Publisher publishes what was found: in annotations for other nodes, and on the Bridge row for a
// later agent of this node. It retries until it succeeds; only the newest findings count.
type Publisher struct {
	annotate func(context.Context, map[string]string) error // the Node; nil without an API
	ovs      *ovsdb.Client
	log      *slog.Logger
	base     *cluster.Node // the last Node that Publish got; only Publish uses it

	mu   sync.Mutex
	next *Found
	wake signal.Signal
}

// NewPublisher makes a Publisher that calls annotate with the annotations of the Node; nil: there
// are no other nodes.
func NewPublisher(annotate func(context.Context, map[string]string) error, ovs *ovsdb.Client,
	log *slog.Logger) *Publisher {
	return &Publisher{annotate: annotate, ovs: ovs, log: log, wake: signal.New()}
}

// Publish stores findings, and the Node as it was read, and returns at once. It does nothing if
// both are as before, or the Node has the annotations already.
func (p *Publisher) Publish(f Found, base *cluster.Node) {
	p.mu.Lock()
	changed := p.next == nil || !reflect.DeepEqual(*p.next, f)
	p.next = &f
	p.mu.Unlock()
	nodeChanged := base != p.base
	p.base = base
	if changed || nodeChanged && p.annotate != nil && !isPublished(base, f) {
		p.wake.Notify()
	}
}

// isPublished reports whether a Node has the annotations of findings: one may have been removed, or
// the Node recreated. Links is nil without the annotation, and empty when there is no such link.
func isPublished(n *cluster.Node, f Found) bool {
	has := Found{Gateway: n.Gateway, addresses: n.HostAddresses, otherLinks: n.Links, rules: n.Rules}
	if f.ports != nil {
		has.ports = &n.HostPorts
	}
	return n.Links != nil && maps.Equal(annotations(has), annotations(f))
}

// annotations returns the annotations for other nodes. It leaves out addresses that are valid on
// this node only: agents and controllers of earlier releases report each as a problem. Before the
// first poll of the host's sockets, the annotation of an earlier agent stays: the first poll reads
// from it which ports are held.
func annotations(f Found) map[string]string {
	shared := slices.DeleteFunc(slices.Clone(f.addresses),
		func(p netip.Prefix) bool { return cluster.HostOnly(p.Addr()) })
	all := map[string]string{
		annotation.Gateway:   annotation.FormatGateway(f.Gateway),
		annotation.HostCIDRs: annotation.FormatHostCIDRs(shared),
		annotation.HostLinks: annotation.FormatHostLinks(f.otherLinks),
		annotation.HostRules: annotation.FormatHostRules(f.rules),
	}
	if f.ports != nil {
		all[annotation.HostPorts] = annotation.FormatHostPorts(*f.ports)
	}
	return all
}

// publishPauseFactor makes pauses between annotations longer than those between scans: every node
// of the cluster receives each annotation.
const publishPauseFactor = 20

// Run writes what Publish stores, until ctx ends.
func (p *Publisher) Run(ctx context.Context) {
	var throttle retry.Throttle
	for p.wake.Wait(ctx) {
		retry.Sleep(ctx, publishPauseFactor*throttle.Pause(time.Now()))
		for ctx.Err() == nil {
			p.mu.Lock()
			f := *p.next
			p.mu.Unlock()
			err := p.write(ctx, f)
			if err == nil {
				break
			}
			if ctx.Err() == nil {
				p.log.Warn("publish host facts", "error", err)
			}
			retry.Sleep(ctx, retry.Last)
		}
		throttle.Done(time.Now(), 0)
	}
}

// write writes facts to both places: if one write fails, it still tries the other.
func (p *Publisher) write(ctx context.Context, f Found) error {
	errRow := p.recordGateway(ctx, f.Gateway)
	if p.annotate == nil {
		return errRow
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return errors.Join(errRow, p.annotate(ctx, annotations(f)))
}

// rowTime limits the time to write a row of Open vSwitch.
const rowTime = time.Second

// recordGateway writes the gateway on the bridge's row.
func (p *Publisher) recordGateway(ctx context.Context, g cluster.Gateway) error {
	gateway, bridge := annotation.FormatGateway(g), ovsdb.BridgeNamed(p.ovs.View(), g.Bridge)
	switch {
	case bridge == nil:
		return fmt.Errorf("there is no bridge %s any more", g.Bridge)
	case bridge.ExternalIDs[keyGateway] == gateway:
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, rowTime)
	defer cancel()
	if err := setExternalID(ctx, p.ovs, bridge, keyGateway, gateway); err != nil {
		return fmt.Errorf("record the gateway of %s: %w", bridge.Name, err)
	}
	return nil
}

// setExternalID replaces the value of a key in a bridge's external_ids.
func setExternalID(ctx context.Context, ovs *ovsdb.Client, b *ovsdb.Bridge, key, value string) error {
	_, err := ovs.Transact(ctx, ovsdb.Mutate("Bridge",
		ovsdb.SetKeys("external_ids", map[string]string{key: value})...).Row(b.UUID))
	return err
}
