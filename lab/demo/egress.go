package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
	"hairpin/watch"
)

// The egress example: two addresses on two nodes, of which one is there for this alone, so that it can be killed; and the
// pods that have the label.
const (
	egressName   = "egressip-prod"
	egressOther  = "egressip-other"
	EgressStays  = "node-b" // the node that lives
	EgressDies   = "node-d" // the node that is killed
	egressWatch  = "egressip-watch"
	egressPod    = "pod-a1"
	egressLabel  = "k8s.ovn.org/egress-assignable"
	dyingAddress = "172.18.0.6"
)

// Egress is the egress example in a running demo.
type Egress struct {
	d    *Demo
	name string       // of the EgressIP
	node *corev1.Node // that dies
	pod  lab.Place
	to   netip.AddrPort

	watched   bool     // there is the EgressIP of Both
	addresses []string // that had nodes at the last look
}

// StartEgress adds the node that dies, labels both nodes and creates the EgressIP with these addresses.
func (d *Demo) StartEgress(ctx context.Context, ips ...string) (*Egress, error) {
	g := &Egress{d: d, name: egressName, pod: d.pod(egressPod), to: netip.AddrPortFrom(netip.MustParseAddr("172.18.0.100"), clientPort)}
	g.node = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: EgressDies, Labels: map[string]string{egressLabel: ""}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.4.0/24", PodCIDRs: []string{"10.244.4.0/24", "fd00:10:244:4::/64"}},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: dyingAddress}, {Type: corev1.NodeInternalIP, Address: "fc00:f853:ccd::6"},
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "LabReady"}},
		},
	}
	if _, err := d.client.CoreV1().Nodes().Create(ctx, g.node, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create Node %s: %w", EgressDies, err)
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

// Other creates another EgressIP, for pod-c1. That pod asks a server elsewhere.
func (g *Egress) Other(ctx context.Context, server netip.Addr, ips ...string) (*Egress, error) {
	other := *g
	other.name, other.pod, other.to = egressOther, g.d.pod("pod-c1"), netip.AddrPortFrom(server, clientPort)
	return &other, g.create(ctx, egressOther, "podremote", ips...)
}

// Pod and Server are the two ends of what is watched.
func (g *Egress) Pod() lab.Place { return g.pod }

// Server is the other end.
func (g *Egress) Server() netip.AddrPort { return g.to }

// Demo is what the example runs in.
func (g *Egress) Demo() *Demo { return g.d }

// create creates an EgressIP for the pods with a label, as in the document.
func (g *Egress) create(ctx context.Context, name, target string, ips ...string) error {
	return g.d.post(ctx, watch.EgressIPPath(), map[string]any{
		"apiVersion": "k8s.ovn.org/v1", "kind": "EgressIP", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"egressIPs":         ips,
			"namespaceSelector": map[string]any{"matchExpressions": []any{map[string]any{"key": "environment", "operator": "NotIn", "values": []string{"development"}}}},
			"podSelector":       map[string]any{"matchLabels": map[string]string{"target": target}},
		},
	})
}

// Create creates the EgressIP again, after Delete.
func (g *Egress) Create(ctx context.Context, ips ...string) error {
	return g.create(ctx, g.name, "podlocal", ips...)
}

// Delete deletes the EgressIP.
func (g *Egress) Delete(ctx context.Context) error {
	if err := g.d.client.CoreV1().RESTClient().Delete().AbsPath(watch.EgressIPPath()+"/"+g.name).SetHeader("Accept", "application/json").Do(ctx).Error(); err != nil {
		return fmt.Errorf("delete EgressIP %s: %w", g.name, err)
	}
	return nil
}

// Both waits until the controller believes both nodes to be alive: it has given each one of two addresses that nobody uses.
func (g *Egress) Both(ctx context.Context) error {
	if !g.watched {
		if err := g.create(ctx, egressWatch, "nobody", "172.18.0.98", "172.18.0.99"); err != nil {
			return err
		}
		g.watched = true
	}
	return g.on(ctx, egressWatch, EgressStays, EgressDies)
}

// defineEgressIPs installs the resource definition, as the chart does.
func (d *Demo) defineEgressIPs(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(d.opt.Objects, "../../charts/hairpin/crds/egressips.yaml"))
	if err != nil {
		return fmt.Errorf("definition of EgressIP: %w", err)
	}
	var crd map[string]any
	if err := yaml.Unmarshal(text, &crd); err != nil {
		return fmt.Errorf("definition of EgressIP: %w", err)
	}
	if err := d.post(ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd); err != nil {
		return err
	}
	return d.wait(ctx, "EgressIPs can be created", func() (bool, error) {
		_, err := d.client.CoreV1().RESTClient().Get().AbsPath(watch.EgressIPPath()).SetHeader("Accept", "application/json").DoRaw(ctx)
		return err == nil, err
	})
}

func (d *Demo) post(ctx context.Context, path string, object any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("post to %s: %w", path, err)
	}
	err = d.client.CoreV1().RESTClient().Post().AbsPath(path).SetHeader("Accept", "application/json").SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("post to %s: %w", path, err)
	}
	return nil
}

// wait waits until done says yes; its error is the reason while it says no.
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

// Label makes a node one that may carry egress addresses, or takes that away.
func (g *Egress) Label(ctx context.Context, node string, on bool) error {
	value := "null"
	if on {
		value = `""`
	}
	_, err := g.d.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(`{"metadata":{"labels":{"`+egressLabel+`":`+value+`}}}`), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("label Node %s: %w", node, err)
	}
	return nil
}

// Nodes waits until the status gives exactly these nodes to the addresses, in their order.
func (g *Egress) Nodes(ctx context.Context, want ...string) error {
	return g.on(ctx, g.name, want...)
}

func (g *Egress) on(ctx context.Context, name string, want ...string) error {
	return g.d.wait(ctx, "the addresses are on "+strings.Join(want, " and "), func() (bool, error) {
		text, err := g.d.client.CoreV1().RESTClient().Get().AbsPath(watch.EgressIPPath()+"/"+name).SetHeader("Accept", "application/json").DoRaw(ctx)
		if err != nil {
			return false, err
		}
		var e struct {
			Status struct {
				Items []struct{ Node, EgressIP string }
			}
		}
		if err := json.Unmarshal(text, &e); err != nil {
			return false, err
		}
		var nodes []string
		g.addresses = nil
		for _, i := range e.Status.Items {
			nodes, g.addresses = append(nodes, i.Node), append(g.addresses, i.EgressIP)
		}
		slices.Sort(nodes)
		return slices.Equal(nodes, want), fmt.Errorf("they are on %s", strings.Join(nodes, " and "))
	})
}

// Kill ends the node that dies: its processes and its network, at once.
func (g *Egress) Kill() error { return g.d.lab.Node(EgressDies).Stop() }

// Revive starts it, with nothing of what was on it, and waits until its agent says that all is well.
func (g *Egress) Revive(ctx context.Context) error {
	if err := g.d.startNode(ctx, g.node); err != nil {
		return err
	}
	n := g.d.lab.Node(EgressDies)
	if err := g.d.introduce(n); err != nil {
		return err
	}
	return g.d.startAgent(ctx, n)
}

// Connection is one of many, a new one.
type Connection struct {
	Begun time.Time
	Took  time.Duration
	Saw   netip.Addr // as whom the server saw the pod
	Error string
}

// Open opens a connection from a port of the pod, and waits for the greeting. It stays open, and ends with a reset.
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

// Connect opens a connection from the pod to the server outside every so often, until stop is called, which gives all of
// them. Each has so long to succeed.
func (g *Egress) Connect(ctx context.Context, every, timeout time.Duration) (stop func() []Connection) {
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
				a := lab.Get(context.WithoutCancel(ctx), g.pod, probe.Request{Protocol: "tcp", To: g.to, Timeout: timeout})
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

// See connects until the server outside has seen these sources and no others since the last change, and prints each.
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

// ShowEgress shows the example: what the server outside sees, before and after an egress node is killed. Its node, its
// EgressIP and its labels are gone afterwards.
func (d *Demo) ShowEgress(ctx context.Context) error {
	if d.client == nil || d.opt.Mode == cluster.ModeDetached { // without an API nobody decides; the wire's addresses are the bridge's
		return nil
	}
	d.say("EgressIP %s: 172.18.0.33 and 172.18.0.44 for pods with the label target=podlocal, on %s and %s", egressName, EgressStays, EgressDies)
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
	d.say("%s was killed: %s is seen as %s; for %d ms some new connections failed", EgressDies, egressPod, left, hole.Milliseconds())
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
	if err := g.d.client.CoreV1().Nodes().Delete(ctx, EgressDies, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete Node %s: %w", EgressDies, err)
	}
	if n := g.d.lab.Node(EgressDies); n != nil {
		return n.Stop()
	}
	return nil
}

// Blackhole is for how long after a moment new connections failed: until the one begun after the last that failed.
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
