package churn

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/lab"
	"hairpin/lab/demo"
)

// settling is the time limit for agents to configure their nodes.
const settling = time.Minute

// marker names a Service and a slice that are written last: an agent that has both has received
// everything before. Their ports change each time.
const marker = "churn-marker"

func markerIP() netip.Addr { return address(0, "10.96.7.%d", "", 250) }

// mark writes the marker, and returns its load balancer entry on a node whose agent has seen it.
func (c *churn) mark(ctx context.Context) (vip string, err error) {
	c.marks++
	port := int32(1 + c.marks%60000)
	name, tcp := "port-tcp", corev1.ProtocolTCP
	services := c.api.CoreV1().Services(namespace)
	if c.marks == 1 {
		_, err = services.Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: marker},
			Spec: corev1.ServiceSpec{
				ClusterIP: markerIP().String(), Ports: []corev1.ServicePort{{Name: name, Port: port}}}},
			metav1.CreateOptions{})
	} else {
		var o *corev1.Service
		if o, err = services.Get(ctx, marker, metav1.GetOptions{}); err == nil {
			o.Spec.Ports[0].Port = port
			_, err = services.Update(ctx, o, metav1.UpdateOptions{})
		}
	}
	if err != nil {
		return "", err
	}
	err = c.put(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: marker, Namespace: namespace,
			Labels: map[string]string{discoveryv1.LabelServiceName: marker}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &tcp, Port: &port}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.9.9"}}},
	})
	return fmt.Sprintf("%s:%d=10.244.9.9:%d", markerIP(), port, port), err
}

// settle waits until all written objects are in effect on every node, and in the caches of its
// switch.
func (c *churn) settle(ctx context.Context) error {
	vip, err := c.mark(ctx)
	if err != nil {
		return err
	}
	has := func(vips string) bool { return slices.Contains(strings.Fields(vips), vip) }
	any := func(string) bool { return true }
	var waits []func() error
	steps := make([][]func() error, len(c.nodes))
	for i, n := range c.nodes {
		for _, step := range []struct {
			name string
			is   func() error
		}{
			{"seen", func() error { return demo.WaitVIPs(ctx, n, settling, has) }},
			{"done", func() error { return c.same(ctx, n) }},
			{"in flows",
				func() error {
					return n.WaitFor(ctx, settling, any, "ovn-nbctl", "--wait=hv", "--timeout=60",
						"sync")
				}},
		} {
			steps[i] = append(steps[i], func() error {
				begin := time.Now()
				if err := step.is(); err != nil {
					return fmt.Errorf("not everything is %s: %w", step.name, err)
				}
				if took := time.Since(begin); took > 3*time.Second {
					c.say("%s: it took %d ms until everything was %s", n.Name(), took.Milliseconds(), step.name)
				}
				return nil
			})
		}
		waits = append(waits, func() error {
			if err := c.settleAddresses(ctx, i); err != nil {
				return err
			}
			for _, step := range steps[i] {
				if err := step(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := lab.Together(waits...); err != nil {
		return err
	}
	for i := range c.nodes {
		c.second[i].Store(c.coming[i])
	}
	for _, s := range c.services {
		s.rest()
	}
	return nil
}

// same waits until a node is in its desired state.
func (c *churn) same(ctx context.Context, n *lab.Node) error {
	begin, last := time.Now(), ""
	for {
		out, err := n.Exec(ctx, "hairpin", "diff", "--config-file=/etc/hairpin/hairpin.conf")
		if err == nil {
			return nil
		}
		switch took := time.Since(begin); {
		case took > settling:
			return fmt.Errorf("%w:\n%s", err, out)
		case took > 3*time.Second && out != last:
			c.say("%s differs after %d ms, %v:\n%s", n.Name(), took.Milliseconds(), err, out)
			last = out
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// settleAddresses waits until the agent has published that its host got or lost the second address.
// The agent serves NodePorts there after that.
func (c *churn) settleAddresses(ctx context.Context, node int) error {
	mine := fmt.Sprintf("172.20.7.%d/32", node+1)
	there := func() (bool, error) {
		o, err := c.api.CoreV1().Nodes().Get(ctx, c.nodes[node].Name(), metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return strings.Contains(o.Annotations["k8s.ovn.org/host-cidrs"], mine) == (c.coming[node] != nil), nil
	}
	end := time.Now().Add(settling)
	for {
		ok, err := there()
		if ok || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s does not tell of its addresses: %s", c.nodes[node].Name(), mine)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// connections returns UDP entries of the kernel's conntrack, in all zones, whose endpoint does not
// serve.
func (c *churn) connections() (seen int, dead []string, err error) {
	for i, n := range c.nodes {
		for family := range 2 {
			var flows []*netlink.ConntrackFlow
			err := n.Do(func() (err error) {
				for range 10 {
					flows, err = netlink.ConntrackTableList(netlink.ConntrackTable,
						[]netlink.InetFamily{unix.AF_INET, unix.AF_INET6}[family])
					if err == nil {
						return nil
					}
				}
				return err
			})
			if err != nil {
				return 0, nil, err
			}
			for _, f := range flows {
				vip, to := addrPort(f.Forward.DstIP, f.Forward.DstPort), addrPort(f.Reverse.SrcIP, f.Reverse.SrcPort)
				if f.Forward.Protocol != unix.IPPROTO_UDP || vip == to {
					continue
				}
				seen++
				if why := c.deadTarget(i, family, vip, to); why != "" {
					dead = append(dead, fmt.Sprintf("%s: %s:%d > %s goes to %s: %s", n.Name(), f.Forward.SrcIP,
						f.Forward.SrcPort, vip, to, why))
				}
			}
		}
	}
	return seen, dead, nil
}

func addrPort(ip []byte, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}

// deadTarget returns the Service whose translation is wrong: it has endpoints, but not this one.
func (c *churn) deadTarget(node, family int, vip, to netip.AddrPort) string {
	for _, s := range c.services {
		v := s.now()
		if !v.there || !c.isOf(s, v, family, vip) || len(usable(v.endpoints[family])) == 0 {
			continue
		}
		for _, e := range v.endpoints[family] {
			if e.at.ips[family] == to.Addr() && e.state == unready {
				return s.name() + " " + v.String()
			}
		}
		for _, p := range c.servers {
			if p.ips[family] == to.Addr() && to.Port() == serverPort && !serves(v.endpoints[family], p) {
				return s.name() + " " + v.String()
			}
		}
	}
	return ""
}

// isOf reports whether a Service has an address.
func (c *churn) isOf(s *service, v version, family int, a netip.AddrPort) bool {
	switch {
	case a == netip.AddrPortFrom(s.clusterIP(family), v.port):
		return true
	case v.external && a == netip.AddrPortFrom(s.externalIP(family, len(c.nodes)), v.port):
		return true
	case v.kind == "LoadBalancer" && a == netip.AddrPortFrom(s.balancerIP(family, len(c.nodes)), v.port):
		return true
	}
	return v.kind != "ClusterIP" && a.Port() == s.nodePort()
}

func serves(list []endpoint, p *place) bool {
	for _, e := range list {
		if e.at == p {
			return e.state != unready
		}
	}
	return false
}
