package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
)

// The egress example: two addresses on two nodes, one of which exists only to be killed, and the
// pods that have the label.
const (
	egressName   = "egressip-prod"
	egressOther  = "egressip-other"
	EgressStays  = "node-b" // the node that keeps running
	EgressDies   = "node-d" // the node that is killed
	egressWatch  = "egressip-watch"
	egressBehind = "behind"
	egressPod    = "pod-a1"
	egressLabel  = "k8s.ovn.org/egress-assignable"
)

// dyingNode is the node that is killed. With an API server, Hairpin itself writes the annotations.
const dyingNode = `
apiVersion: v1
kind: Node
metadata:
  name: node-d
  labels: {k8s.ovn.org/egress-assignable: ""}
  annotations:
    k8s.ovn.org/node-id: "4"
    k8s.ovn.org/host-cidrs: '["172.18.0.6/16","fc00:f853:ccd::6/64"]'
    k8s.ovn.org/l3-gateway-config: '{"default":{"mode":"shared","bridge-id":"br-ex","uplink":"eth0","mac-address":"02:42:ac:12:00:06","ip-addresses":["172.18.0.6/16","fc00:f853:ccd::6/64"],"next-hops":["172.18.0.1","fc00:f853:ccd::1"],"datapath":"netdev"}}'
spec:
  podCIDR: 10.244.4.0/24
  podCIDRs: ["10.244.4.0/24", "fd00:10:244:4::/64"]
status:
  addresses: [{type: InternalIP, address: 172.18.0.6}, {type: InternalIP, address: "fc00:f853:ccd::6"}]
  conditions: [{type: Ready, status: "True", reason: LabReady}]
`

// podsNamespace is the Namespace that the selector matches.
const podsNamespace = "{apiVersion: v1, kind: Namespace, metadata: {name: default}}"

// Egress is the egress example in a running demo.
type Egress struct {
	d    *Demo
	name string       // of the EgressIP, or "default/behind" of the EgressService
	node *corev1.Node // the node that is killed
	pod  lab.Place
	to   netip.AddrPort

	watched   bool     // the EgressIP of Both exists
	addresses []string // addresses that had nodes at the last check
}

// StartEgress adds the node that will be killed, labels both nodes and creates the EgressIP with
// these addresses.
func (d *Demo) StartEgress(ctx context.Context, ips ...string) (*Egress, error) {
	g := &Egress{d: d, name: egressName, pod: d.pod(egressPod),
		to: netip.AddrPortFrom(netip.MustParseAddr("172.18.0.100"), clientPort)}
	var o objects
	if err := o.read([]byte(dyingNode)); err != nil {
		return nil, err
	}
	g.node = &o.nodes[0]
	for _, manifest := range []string{dyingNode, podsNamespace} {
		if err := d.Put(ctx, manifest); err != nil {
			return nil, err
		}
	}
	if err := lab.Together(
		func() error { return g.Revive(ctx) },
		func() error { return g.Label(ctx, EgressStays, true) },
	); err != nil {
		return nil, err
	}
	return g, g.create(ctx, egressName, "podlocal", ips...)
}

func (d *Demo) pod(name string) lab.Place {
	for _, n := range d.lab.Nodes() {
		for _, p := range n.Pods() {
			if p.Name() == name {
				return p
			}
		}
	}
	return nil
}

// Other creates another EgressIP, for pod-c1, which connects to another server.
func (g *Egress) Other(ctx context.Context, server netip.Addr, ips ...string) (*Egress, error) {
	other := *g
	other.name, other.pod, other.to = egressOther, g.d.pod("pod-c1"), netip.AddrPortFrom(server, clientPort)
	return &other, g.create(ctx, egressOther, "podremote", ips...)
}

// Behind creates a Service for the pod with load-balancer addresses, and its EgressService. Any
// node that may carry egress addresses can be its host.
func (g *Egress) Behind(ctx context.Context, ips ...string) (*Egress, error) {
	var ingress []string
	for _, ip := range ips {
		ingress = append(ingress, fmt.Sprintf("{ip: %q}", ip))
	}
	service := *g
	service.name = metav1.NamespaceDefault + "/" + egressBehind
	return &service, errors.Join(g.d.Put(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  selector: {target: podlocal}
  ports: [{port: 80, targetPort: 8080}]
status: {loadBalancer: {ingress: [%s]}}
`, egressBehind, strings.Join(ingress, ", "))), g.d.Put(ctx, fmt.Sprintf(`
apiVersion: k8s.ovn.org/v1
kind: EgressService
metadata: {name: %s, namespace: default}
spec: {nodeSelector: {matchLabels: {%s: ""}}}
`, egressBehind, egressLabel)))
}

// Pod returns the client end of the observed connections.
func (g *Egress) Pod() lab.Place { return g.pod }

// Server returns the server end.
func (g *Egress) Server() netip.AddrPort { return g.to }

// Demo returns the demo of the example.
func (g *Egress) Demo() *Demo { return g.d }

// create creates an EgressIP for the pods with a label, as in the document. Its status is what a
// controller would decide: the first address on the node that keeps running, the second on the
// other.
func (g *Egress) create(ctx context.Context, name, target string, ips ...string) error {
	var quoted, items []string
	for i, ip := range ips {
		quoted = append(quoted, strconv.Quote(ip))
		items = append(items, fmt.Sprintf("{node: %s, egressIP: %q}", []string{EgressStays, EgressDies}[i%2], ip))
	}
	return g.d.Put(ctx, fmt.Sprintf(`
apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: %s}
spec:
  egressIPs: [%s]
  namespaceSelector: {matchExpressions: [{key: environment, operator: NotIn, values: [development]}]}
  podSelector: {matchLabels: {target: %s}}
status: {items: [%s]}
`, name, strings.Join(quoted, ", "), target, strings.Join(items, ", ")))
}

// Put creates an object from a manifest.
func (d *Demo) Put(ctx context.Context, manifest string) error {
	o, err := parseObject(manifest)
	if err != nil {
		return err
	}
	return d.source.create(ctx, o)
}

// remove deletes an object.
func (d *Demo) remove(ctx context.Context, kind, name string) error {
	return d.source.remove(ctx, &object{TypeMeta: metav1.TypeMeta{Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// Create creates the EgressIP again, after Delete.
func (g *Egress) Create(ctx context.Context, ips ...string) error {
	return g.create(ctx, g.name, "podlocal", ips...)
}

// Delete deletes the EgressIP or EgressService.
func (g *Egress) Delete(ctx context.Context) error {
	if _, service, is := strings.Cut(g.name, "/"); is {
		return g.d.remove(ctx, "EgressService", service)
	}
	return g.d.remove(ctx, "EgressIP", g.name)
}

// Both waits until the controller considers both nodes alive, that is, until it has assigned each
// one of two unused addresses.
func (g *Egress) Both(ctx context.Context) error {
	if !g.watched {
		if err := g.create(ctx, egressWatch, "nobody", "172.18.0.98", "172.18.0.99"); err != nil {
			return err
		}
		g.watched = true
	}
	return g.on(ctx, egressWatch, EgressStays, EgressDies)
}

// wait waits until done returns true. Its error wraps the last reason why it did not.
func (d *Demo) wait(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, longer(patience, d.opt.Slow))
	defer cancel()
	for {
		ok, why := done()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, why)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Label adds or removes the label that allows a node to carry egress addresses.
func (g *Egress) Label(ctx context.Context, node string, on bool) error {
	var value any
	if on {
		value = ""
	}
	return g.d.source.set(ctx, "Node", node, labelsField, egressLabel, value)
}

// Nodes waits until exactly these nodes have the addresses.
func (g *Egress) Nodes(ctx context.Context, want ...string) error {
	return g.on(ctx, g.name, want...)
}

func (g *Egress) on(ctx context.Context, name string, want ...string) error {
	return g.d.wait(ctx, "the addresses are on "+strings.Join(want, " and "), func() (bool, error) {
		list, err := g.d.source.carriers(ctx, g.d.lab, name)
		if err != nil {
			return false, err
		}
		var nodes []string
		g.addresses = nil
		for _, c := range list {
			nodes, g.addresses = append(nodes, c.Node), append(g.addresses, c.EgressIP)
		}
		slices.Sort(nodes)
		return slices.Equal(nodes, want), fmt.Errorf("they are on %s", strings.Join(nodes, " and "))
	})
}

// Kill stops EgressDies at once: its processes and its network.
func (g *Egress) Kill() error { return g.d.lab.Node(EgressDies).Stop() }

// Revive starts EgressDies again with no state, and waits until its agent is healthy.
func (g *Egress) Revive(ctx context.Context) error {
	if err := g.d.startNode(ctx, g.node); err != nil {
		return err
	}
	return g.d.startAgent(ctx, g.d.lab.Node(EgressDies))
}

// Connection is the result of one new connection.
type Connection struct {
	Begun time.Time
	Took  time.Duration
	Saw   netip.Addr // the pod's address as seen by the server
	Error string
}

// Open opens a connection from a port of the pod, and waits for the greeting. The connection stays
// open until end, which resets it.
func (g *Egress) Open(port int) (end func(), err error) {
	var c net.Conn
	err = lab.Do(g.pod, func() (err error) {
		d := net.Dialer{Timeout: 3 * time.Second, LocalAddr: &net.TCPAddr{Port: port}}
		c, err = d.Dial("tcp4", g.to.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connection from %s: %w", g.pod.Name(), err)
	}
	end = func() { _ = c.Close() }
	err = errors.Join(c.(*net.TCPConn).SetLinger(0), c.SetReadDeadline(time.Now().Add(3*time.Second)))
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	if err != nil {
		end()
		return nil, fmt.Errorf("connection from %s: %w", g.pod.Name(), err)
	}
	return end, nil
}

// Connect opens a connection from the pod to the external server at each interval, as Connect.
func (g *Egress) Connect(ctx context.Context, every, timeout time.Duration) (stop func() []Connection) {
	return Connect(ctx, g.pod, g.to, every, timeout)
}

// Connect opens a connection from a place to a server at each interval, with a timeout. stop ends
// this and returns all connections.
func Connect(ctx context.Context, from lab.Place, to netip.AddrPort,
	every, timeout time.Duration) (stop func() []Connection) {
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex
	var all []Connection
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			wg.Go(func() {
				c := Connection{Begun: time.Now()}
				a := lab.Get(context.WithoutCancel(ctx), from,
					probe.Request{Protocol: "tcp", To: to, Timeout: timeout})
				c.Took, c.Saw, c.Error = time.Since(c.Begun), a.Saw.Addr(), a.Error
				mu.Lock()
				all = append(all, c)
				mu.Unlock()
			})
		}
	})
	return func() []Connection {
		cancel()
		wg.Wait()
		slices.SortFunc(all, func(a, b Connection) int { return a.Begun.Compare(b.Begun) })
		return all
	}
}

// See connects until the external server has seen these sources and no others since the last
// change, and prints each.
func (g *Egress) See(ctx context.Context, want ...string) error {
	seen, row := map[string]bool{}, 0
	return g.d.wait(ctx, "the pod is seen as "+strings.Join(want, " and "), func() (bool, error) {
		a := lab.Get(ctx, g.pod, probe.Request{Protocol: "tcp", To: g.to, Timeout: time.Second})
		if a.Error != "" {
			return false, fmt.Errorf("%s", a.Error)
		}
		saw := a.Saw.Addr().String()
		if !slices.Contains(want, saw) {
			seen, row = map[string]bool{}, 0
			return false, fmt.Errorf("it is seen as %s", saw)
		}
		seen[saw] = true
		row++
		return len(seen) == len(want) && row >= 10, fmt.Errorf("so far it is seen as %v", seen)
	})
}

// ShowEgress shows what the external server sees before and after an egress node is killed. Its
// node, its EgressIP and its labels are removed afterwards.
func (d *Demo) ShowEgress(ctx context.Context) error {
	if d.opt.Mode == cluster.ModeDetached { // the external network's addresses belong to the bridge
		return nil
	}
	if d.opt.Slow > 1 {
		d.say("EgressIP: not tried: on a machine this slow, nodes that live do not answer in time")
		return nil
	}
	d.say("EgressIP %s: 172.18.0.33 and 172.18.0.44 for pods with the label target=podlocal, on %s and %s", egressName,
		EgressStays, EgressDies)
	g, err := d.StartEgress(ctx, "172.18.0.33", "172.18.0.44")
	if err != nil {
		return err
	}
	if err := g.Nodes(ctx, EgressStays, EgressDies); err != nil {
		return err
	}
	if err := g.See(ctx, "172.18.0.33", "172.18.0.44"); err != nil {
		return err
	}
	d.say("%s is seen outside as 172.18.0.33 and 172.18.0.44, and as nobody else", egressPod)
	stop := g.Connect(ctx, 20*time.Millisecond, 500*time.Millisecond)
	killed := time.Now()
	if err := g.Kill(); err != nil {
		return err
	}
	if err := g.Nodes(ctx, EgressStays); err != nil {
		return err
	}
	left := g.addresses[0]
	if err := g.See(ctx, left); err != nil {
		return err
	}
	hole := Blackhole(stop(), killed)
	d.say("%s was killed: %s is seen as %s; for %d ms some new connections failed", EgressDies, egressPod, left,
		hole.Milliseconds())
	return g.End(ctx)
}

// End removes everything that StartEgress made.
func (g *Egress) End(ctx context.Context) error {
	if err := g.Delete(ctx); err != nil {
		return err
	}
	if err := g.Label(ctx, EgressStays, false); err != nil {
		return err
	}
	if err := g.d.remove(ctx, "Node", EgressDies); err != nil {
		return err
	}
	if n := g.d.lab.Node(EgressDies); n != nil {
		return n.Stop()
	}
	return nil
}

// Blackhole returns the time from since until the first connection after the last failed one.
func Blackhole(all []Connection, since time.Time) time.Duration {
	var end time.Time
	for i, c := range all {
		if c.Begun.Before(since.Add(-time.Second)) || c.Error == "" {
			continue
		}
		end = c.Begun
		if i+1 < len(all) {
			end = all[i+1].Begun
		}
	}
	if end.IsZero() {
		return 0
	}
	return max(0, end.Sub(since))
}
