package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"hairpin/cluster"
	"hairpin/ovsdb"
)

// local is what this node knows better than the API: its own gateway and addresses, and its own pods.
type local struct {
	node  string
	found findings
	base  *cluster.Node // the Node of the Snapshot that own was made from
	own   *cluster.Node
	pods  map[*cluster.Pod]*cluster.Pod // own pods, as they are and with their labels
}

// apply gives the Snapshot with the local facts in place of what the API says of them. While the facts stay the same,
// so does the pointer to the own Node.
func (l *local) apply(s *cluster.Snapshot, found findings, pods []*cluster.Pod) *cluster.Snapshot {
	base := s.Node(l.node)
	if base == nil {
		return s
	}
	if base != l.base || !reflect.DeepEqual(found, l.found) {
		l.base, l.found = base, found
		own := *base
		own.Gateway = found.gateway
		own.HostAddresses = found.addresses
		own.Links = found.networks
		if !cluster.ModeNamed(own.Gateway.Mode).Uplink && len(own.Addresses) > 0 {
			d := found.links[own.Addresses[0]]
			own.Gateway.Device, own.Gateway.DeviceMAC = d.name, d.mac
		}
		l.own = &own
	}
	out := *s
	out.Nodes = slices.Clone(s.Nodes)
	out.Nodes[slices.Index(out.Nodes, base)] = l.own
	out.Pods = slices.DeleteFunc(slices.Clone(s.Pods), func(p *cluster.Pod) bool { return p.Node == l.node })
	out.Pods = append(out.Pods, l.labelled(s, pods)...)
	slices.SortFunc(out.Pods, func(a, b *cluster.Pod) int { return a.Owner.Compare(b.Owner) })
	return &out
}

// labelled gives own pods the labels that the API knows of them. While a pod and its labels stay the same, so does the
// pointer.
func (l *local) labelled(s *cluster.Snapshot, pods []*cluster.Pod) []*cluster.Pod {
	known := make(map[cluster.Owner]*cluster.Pod, len(pods))
	for _, all := range [][]*cluster.Pod{s.Pods, s.Starting} {
		for _, p := range all {
			if p.Node == l.node && len(p.Labels) > 0 {
				known[p.Owner] = p
			}
		}
	}
	list, next := make([]*cluster.Pod, 0, len(pods)), make(map[*cluster.Pod]*cluster.Pod, len(pods))
	for _, p := range pods {
		with := p
		if k := known[p.Owner]; k != nil && (k.UID == p.UID || k.UID == "" || p.UID == "") { // not another Pod of the same name
			if with = l.pods[p]; with == nil || !maps.Equal(with.Labels, k.Labels) {
				c := *p
				c.Labels = k.Labels
				with = &c
			}
		}
		next[p] = with
		list = append(list, with)
	}
	l.pods = next
	return list
}

// publisher tells the other nodes, by annotations, and the own future self, by the Bridge row, what was found. It
// tries until it is done; only the newest findings count.
type publisher struct {
	client kubernetes.Interface // nil without an API
	ovs    *ovsdb.Client
	node   string
	log    *slog.Logger
	base   *cluster.Node // the last Node that was read; of the agent's loop

	mu   sync.Mutex
	next *findings
	wake chan struct{}
}

func newPublisher(client kubernetes.Interface, ovs *ovsdb.Client, node string, log *slog.Logger) *publisher {
	return &publisher{client: client, ovs: ovs, node: node, log: log, wake: make(chan struct{}, 1)}
}

// publish hands over findings, and the Node as it was read, and returns at once. It does nothing when both are as before, or
// the Node has them.
func (p *publisher) publish(f findings, base *cluster.Node) {
	p.mu.Lock()
	same := p.next != nil && reflect.DeepEqual(*p.next, f)
	p.next = &f
	p.mu.Unlock()
	read := base != p.base
	p.base = base
	if same && (!read || p.client == nil || published(base, f)) {
		return
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// published tells whether a Node has the annotations of findings: somebody may have removed one, or made the Node anew.
func published(n *cluster.Node, f findings) bool {
	has := findings{gateway: n.Gateway, addresses: n.HostAddresses, networks: n.Links}
	return n.Links != nil && maps.Equal(annotations(has), annotations(f))
}

func annotations(f findings) map[string]string {
	return map[string]string{
		cluster.AnnotationGateway:   cluster.GatewayAnnotation(f.gateway),
		cluster.AnnotationHostCIDRs: cluster.HostCIDRsAnnotation(f.addresses),
		cluster.AnnotationHostLinks: cluster.HostLinksAnnotation(f.networks),
	}
}

// publishPause is what pauses between annotations are longer than those between looks at the host: every node of the cluster hears
// of them.
const publishPause = 20

func (p *publisher) run(ctx context.Context) {
	var c calm
	pause := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		pause(publishPause * c.pause(time.Now()))
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
			pause(time.Second)
		}
		c.done(time.Now())
	}
}

// write tells the other nodes also when Open vSwitch does not answer.
func (p *publisher) write(ctx context.Context, f findings) error {
	errRow := p.remember(ctx, f.gateway)
	if p.client == nil {
		return errRow
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return errors.Join(errRow, annotateNode(ctx, p.client, p.node, annotations(f)))
}

// remember writes the gateway on the bridge's row.
func (p *publisher) remember(ctx context.Context, g cluster.Gateway) error {
	gateway := cluster.GatewayAnnotation(g)
	var bridge *ovsdb.Bridge
	for b := range ovsdb.Rows[ovsdb.Bridge](p.ovs.View()) {
		if b.Name == g.Bridge {
			bridge = b
		}
	}
	switch {
	case bridge == nil:
		return fmt.Errorf("bridge %s is gone", g.Bridge)
	case bridge.ExternalIDs[keyGateway] == gateway:
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	_, err := p.ovs.Transact(ctx, ovsdb.Mutate("Bridge",
		ovsdb.DeleteFrom("external_ids", []string{keyGateway}),
		ovsdb.InsertInto("external_ids", map[string]string{keyGateway: gateway})).Row(bridge.UUID))
	if err != nil {
		return fmt.Errorf("remember the gateway of %s: %w", bridge.Name, err)
	}
	return nil
}
