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

// Local is what this node knows earlier than the API: its own gateway, addresses and pods.
type Local struct {
	node    string
	objects bool
	found   Found
	Base    *cluster.Node // the Node of the Snapshot from which Own was made
	Own     *cluster.Node
	pods    map[*cluster.Pod]*cluster.Pod // own pods without labels, and the same with labels
	read    map[podKey]*cluster.Pod       // the newest objects of own pods
	// The last list of all pods, and the lists it was made from.
	all, api, starting, own []*cluster.Pod
}

// podKey names a pod. A later pod of the same name has another UID.
type podKey struct {
	owner cluster.Owner
	uid   string
}

// NewLocal returns a Local without facts. objects reports that every pod has an object in the
// Snapshots, sooner or later.
func NewLocal(node string, objects bool) Local { return Local{node: node, objects: objects} }

// Apply returns the Snapshot with local facts in place of the API's. While the facts stay the same,
// the pointer to the own Node does, too.
func (l *Local) Apply(s *cluster.Snapshot, found Found, pods []*cluster.Pod) *cluster.Snapshot {
	base := s.Node(l.node)
	if base == nil {
		return s
	}
	if base != l.Base || !reflect.DeepEqual(found, l.found) {
		l.Base, l.found = base, found
		own := *base
		own.Gateway = found.Gateway
		own.HostAddresses = found.addresses
		own.Links, own.Rules, own.Tables = found.networks, found.rules, found.tables
		if !cluster.ModeNamed(own.Gateway.Mode).Uplink && len(own.Addresses) > 0 {
			d := found.links[own.Addresses[0]]
			own.Gateway.Device, own.Gateway.DeviceMAC = d.name, d.mac
		}
		l.Own = &own
	}
	out := *s
	out.Nodes = slices.Clone(s.Nodes)
	out.Nodes[slices.Index(out.Nodes, base)] = l.Own
	if !cluster.SameList(l.api, s.Pods) || !cluster.SameList(l.starting, s.Starting) || !slices.Equal(l.own, pods) {
		l.all, l.api, l.starting, l.own = l.merged(s, pods), s.Pods, s.Starting, slices.Clone(pods)
	}
	out.Pods = l.all
	return &out
}

// merged inserts own pods among those of other nodes, which may be all pods of the cluster and are
// sorted already.
func (l *Local) merged(s *cluster.Snapshot, pods []*cluster.Pod) []*cluster.Pod {
	others := slices.DeleteFunc(slices.Clone(s.Pods), func(p *cluster.Pod) bool { return p.Node == l.node })
	own := l.labelled(s, pods)
	slices.SortFunc(own, (*cluster.Pod).Compare)
	list := make([]*cluster.Pod, 0, len(others)+len(own))
	for _, p := range own {
		n, _ := slices.BinarySearchFunc(others, p.Owner, comparePod)
		list, others = append(append(list, others[:n]...), p), others[n:]
	}
	return append(list, others...)
}

// known returns the API's object of an own pod, or nil. An object of another pod with the same name
// does not count.
func (l *Local) known(s *cluster.Snapshot, p *cluster.Pod) *cluster.Pod {
	for _, all := range [][]*cluster.Pod{s.Starting, s.Pods} {
		if i, found := slices.BinarySearchFunc(all, p.Owner, comparePod); found && all[i].Node == l.node {
			if k := all[i]; k.UID == p.UID || k.UID == "" || p.UID == "" {
				return k
			}
		}
	}
	return nil
}

func comparePod(p *cluster.Pod, o cluster.Owner) int { return p.Owner.Compare(o) }

// labelled adds to own pods the labels, named ports and extra addresses from the API. While these
// stay the same, the pointer does, too. A pod whose object was deleted keeps its labels and ports:
// policies apply to it until its interface is removed. A pod whose object was never known is
// Unread.
func (l *Local) labelled(s *cluster.Snapshot, pods []*cluster.Pod) []*cluster.Pod {
	list, next := make([]*cluster.Pod, 0, len(pods)), make(map[*cluster.Pod]*cluster.Pod, len(pods))
	read := make(map[podKey]*cluster.Pod, len(pods))
	for _, p := range pods {
		c, key := *p, podKey{p.Owner, p.UID}
		if k := l.known(s, p); k != nil {
			read[key], c.Extra = k, k.Extra
		} else if k := l.read[key]; k != nil {
			read[key] = k
		}
		if k := read[key]; k != nil {
			c.Labels, c.Ports = k.Labels, k.Ports
		}
		c.Unread = l.objects && read[key] == nil
		with := l.pods[p]
		switch {
		case len(c.Labels)+len(c.Ports)+len(c.Extra) == 0 && !c.Unread:
			with = p
		case with == nil || with.Unread != c.Unread || !maps.Equal(with.Labels, c.Labels) ||
			!slices.Equal(with.Ports, c.Ports) || !slices.Equal(with.Extra, c.Extra):
			with = &c
		}
		next[p] = with
		list = append(list, with)
	}
	l.pods, l.read = next, read
	return list
}

// Publisher publishes what was found: in annotations for other nodes, and on the Bridge row for a
// later agent of this node. It retries until it succeeds; only the newest findings count.
type Publisher struct {
	annotate func(context.Context, map[string]string) error // the Node; nil without an API
	ovs      *ovsdb.Client
	log      *slog.Logger
	base     *cluster.Node // the last Node that was read; of the agent's loop

	mu   sync.Mutex
	next *Found
	wake signal.Signal
}

// NewPublisher makes a Publisher that writes annotations of the Node by annotate; nil: there are no
// other nodes.
func NewPublisher(annotate func(context.Context, map[string]string) error, ovs *ovsdb.Client,
	log *slog.Logger) *Publisher {
	return &Publisher{annotate: annotate, ovs: ovs, log: log, wake: signal.New()}
}

// Publish stores findings, and the Node as it was read, and returns at once. It does nothing if
// both are as before, or the Node has the annotations already.
func (p *Publisher) Publish(f Found, base *cluster.Node) {
	p.mu.Lock()
	same := p.next != nil && reflect.DeepEqual(*p.next, f)
	p.next = &f
	p.mu.Unlock()
	read := base != p.base
	p.base = base
	if same && (!read || p.annotate == nil || isPublished(base, f)) {
		return
	}
	p.wake.Notify()
}

// isPublished reports whether a Node has the annotations of findings: one may have been removed, or
// the Node recreated.
func isPublished(n *cluster.Node, f Found) bool {
	has := Found{Gateway: n.Gateway, addresses: n.HostAddresses, networks: n.Links, rules: n.Rules}
	if f.ports != nil {
		has.ports = &n.HostPorts
	}
	return n.Links != nil && maps.Equal(annotations(has), annotations(f))
}

// annotations returns the annotations for other nodes. It leaves out addresses that are valid on
// this node only: agents and controllers of earlier releases report each as a problem. Before the
// first look at the host's sockets, the annotation of an earlier agent stays: the first look reads
// from it which ports are held.
func annotations(f Found) map[string]string {
	shared := slices.DeleteFunc(slices.Clone(f.addresses),
		func(p netip.Prefix) bool { return cluster.HostOnly(p.Addr()) })
	all := map[string]string{
		annotation.Gateway:   annotation.FormatGateway(f.Gateway),
		annotation.HostCIDRs: annotation.FormatHostCIDRs(shared),
		annotation.HostLinks: annotation.FormatHostLinks(f.networks),
		annotation.HostRules: annotation.FormatHostRules(f.rules),
	}
	if f.ports != nil {
		all[annotation.HostPorts] = annotation.FormatHostPorts(*f.ports)
	}
	return all
}

// publishPause is the factor by which pauses between annotations are longer than those between
// scans: every node of the cluster receives each annotation.
const publishPause = 20

func (p *Publisher) Run(ctx context.Context) {
	var c retry.Throttle
	for p.wake.Wait(ctx) {
		retry.Sleep(ctx, publishPause*c.Pause(time.Now()))
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
		c.Done(time.Now(), 0)
	}
}

// write also annotates the Node if Open vSwitch does not answer.
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
		return fmt.Errorf("bridge %s is gone", g.Bridge)
	case bridge.ExternalIDs[keyGateway] == gateway:
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, rowTime)
	defer cancel()
	_, err := p.ovs.Transact(ctx, ovsdb.Mutate("Bridge",
		ovsdb.DeleteFrom("external_ids", []string{keyGateway}),
		ovsdb.InsertInto("external_ids", map[string]string{keyGateway: gateway})).Row(bridge.UUID))
	if err != nil {
		return fmt.Errorf("remember the gateway of %s: %w", bridge.Name, err)
	}
	return nil
}
