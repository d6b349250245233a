package demo

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/lab"
)

// patience is the time limit of an agent's step, which takes a second on an idle machine.
const patience = time.Minute

// longer multiplies a time by the machine's slowness factor.
func longer(t time.Duration, slow int) time.Duration { return t * time.Duration(max(1, slow)) }

// startAgents starts the agent of each node and waits until all are healthy.
func (d *Demo) startAgents(ctx context.Context) error {
	d.say("agents: starting")
	var starts []func() error
	for _, n := range d.lab.Nodes() {
		starts = append(starts, func() error { return d.startAgent(ctx, n) })
	}
	return lab.Together(starts...)
}

// startAgent starts the agent of a node and waits until it is healthy.
func (d *Demo) startAgent(ctx context.Context, n *lab.Node) error {
	begin := time.Now()
	if err := d.source.introduce(ctx, d.lab, n); err != nil {
		return err
	}
	if err := n.StartDaemon(ctx, "hairpin", "/usr/local/bin/hairpin", "node", "--config-file="+
		agentConfig); err != nil {
		return err
	}
	all := func(string) bool { return true }
	if err := n.WaitFor(ctx, longer(patience, d.opt.Slow), all, "hairpin", "status", "--config-file="+
		agentConfig); err != nil {
		return fmt.Errorf("%w; its log is %s", err, n.LogFile("hairpin"))
	}
	d.say("%s: the agent is ready after %.1f s", n.Name(), time.Since(begin).Seconds())
	return nil
}

// addPods connects the pods of each node one after the other, so that they get the addresses of the
// manifests.
func (d *Demo) addPods(ctx context.Context) error {
	var starts []func() error
	for _, n := range d.lab.Nodes() {
		starts = append(starts, func() error {
			for _, pod := range d.objects.pods {
				if pod.Spec.NodeName != n.Name() {
					continue
				}
				if err := d.addPod(ctx, n, &pod); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return lab.Together(starts...)
}

func (d *Demo) addPod(ctx context.Context, n *lab.Node, pod *corev1.Pod) error {
	begin := time.Now()
	serve := func(p *lab.Pod) error {
		_, err := lab.Serve(ctx, p, p.Name(), podPort)
		return err
	}
	p, err := d.source.runPod(ctx, n, pod, serve)
	if err != nil {
		return err
	}
	d.say("%s: %s has %s after %.0f ms", n.Name(), p.Name(), words(p.IPs()), float64(time.Since(begin).Milliseconds()))
	return nil
}

func words(list []netip.Addr) string {
	var out []string
	for _, a := range list {
		out = append(out, a.String())
	}
	return strings.Join(out, " and ")
}

// settle waits until every node balances every ClusterIP over all its endpoints, and the flows are
// installed.
func (d *Demo) settle(ctx context.Context) error {
	want := d.endpointCounts()
	var waits []func() error
	for _, n := range d.lab.Nodes() {
		waits = append(waits, func() error {
			served := want
			if !strings.Contains(d.agentConfig(n.Name()), "service-engine = "+cluster.EngineOVN) {
				served = maps.Clone(want)
				maps.DeleteFunc(served, func(_ netip.Addr, n int) bool { return n == 0 }) // no flow: the host rejects
			}
			if err := WaitVIPs(ctx, n, longer(patience, d.opt.Slow),
				func(vips string) bool { return maps.Equal(countBackends(vips, served), served) }); err != nil {
				return err
			}
			_, err := n.Exec(ctx, "ovn-nbctl", "--wait=hv", fmt.Sprintf("--timeout=%d", 60*max(1, d.opt.Slow)), "sync")
			return err
		})
	}
	if err := lab.Together(waits...); err != nil {
		return err
	}
	d.say("all Services are in the switches")
	return nil
}

// endpointCounts returns the number of endpoints that each ClusterIP must have when all pods run.
func (d *Demo) endpointCounts() map[netip.Addr]int {
	counts := map[netip.Addr]int{}
	for _, s := range d.objects.services {
		if s.Spec.InternalTrafficPolicy != nil &&
			*s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal {
			continue // the endpoints differ by node
		}
		n := 0
		for _, p := range d.objects.pods {
			if len(s.Spec.Selector) > 0 && labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(p.Labels)) {
				n++
			}
		}
		for _, slice := range d.objects.slices {
			if len(s.Spec.Selector) == 0 && slice.AddressType == discoveryv1.AddressTypeIPv4 &&
				slice.Labels[discoveryv1.LabelServiceName] == s.Name {
				n += len(slice.Endpoints)
			}
		}
		for _, text := range s.Spec.ClusterIPs {
			if ip, err := netip.ParseAddr(text); err == nil { // "None" has no load balancer
				counts[ip] = n
			}
		}
	}
	return counts
}

// WaitVIPs waits until ok accepts what a node serves: addresses and ports with their endpoints,
// such as "10.96.1.1:80=10.244.1.3:8080". They may be served by load balancers of OVN or by flows
// and groups.
func WaitVIPs(ctx context.Context, n *lab.Node, limit time.Duration, ok func(vips string) bool) error {
	both := func(out string) bool { return ok(out + "\n" + vipsOfFlows(out)) }
	const bridge = claims.ServiceBridge
	return n.WaitFor(ctx, limit, both, "sh", "-c",
		"ovn-nbctl --bare --columns=vips list Load_Balancer; ! ovs-vsctl br-exists "+bridge+
			" || { ovs-ofctl -O OpenFlow15 dump-groups "+bridge+"; ovs-ofctl -O OpenFlow15 dump-flows "+bridge+"; }")
}

var (
	groupLine  = regexp.MustCompile(`group_id=(\d+),`)
	endpointOf = regexp.MustCompile(`nat\(dst=([^)]+)\)`)
	toGroup    = regexp.MustCompile(`(?:nw_dst|ipv6_dst)=([^,]+),tp_dst=(\d+) actions=(?:group:(\d+)|set_field:(0x[0-9a-f]+)->reg6)`)
	ofBucket   = regexp.MustCompile(`reg6=(0x[0-9a-f]+),reg7=`) // with session affinity, a bucket's endpoint in a flow
)

// vipsOfFlows converts groups and flows of Services to the format of load balancers.
func vipsOfFlows(text string) string {
	number := func(words ...string) uint64 {
		n, _ := strconv.ParseUint(strings.Join(words, ""), 0, 32)
		return n
	}
	endpoints := map[uint64][]string{} // by group
	for line := range strings.Lines(text) {
		for _, group := range []*regexp.Regexp{groupLine, ofBucket} {
			if g := group.FindStringSubmatch(line); g != nil {
				for _, e := range endpointOf.FindAllStringSubmatch(line, -1) {
					endpoints[number(g[1])] = append(endpoints[number(g[1])], e[1])
				}
			}
		}
	}
	var vips []string
	for line := range strings.Lines(text) {
		if f := toGroup.FindStringSubmatch(line); f != nil {
			if address, err := netip.ParseAddr(f[1]); err == nil {
				vips = append(vips, netip.AddrPortFrom(address, uint16(number(f[2]))).String()+"="+
					strings.Join(endpoints[number(f[3:]...)], ","))
			}
		}
	}
	return strings.Join(vips, "\n")
}

// countBackends reads the vips of load balancers, such as
// "10.96.1.1:80=10.244.1.3:8080,10.244.2.3:8080". It returns the smallest number of backends of
// each requested address.
func countBackends(vips string, of map[netip.Addr]int) map[netip.Addr]int {
	counts := map[netip.Addr]int{}
	for _, word := range strings.Fields(vips) {
		vip, backends, _ := strings.Cut(word, "=")
		address, err := netip.ParseAddrPort(vip)
		if _, asked := of[address.Addr()]; err != nil || !asked {
			continue
		}
		n := 0
		if backends != "" { // with session affinity, each backend appears many times
			list := strings.Split(backends, ",")
			slices.Sort(list)
			n = len(slices.Compact(list))
		}
		if old, ok := counts[address.Addr()]; !ok || n < old {
			counts[address.Addr()] = n
		}
	}
	return counts
}
