package scale

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hairpin/lab"
)

// kind is a kind of object whose number can grow.
type kind struct {
	add  func(ctx context.Context, first, end int) error // writes those from first to end-1
	seen func(ctx context.Context, end int) error        // returns when packets, or else OVN, use the last
}

func (w *world) kinds() map[string]kind {
	return map[string]kind{
		"services":   {w.addServices, w.lastServiceAnswers},
		"endpoints":  {w.addEndpoints, w.connectionsMeet},
		"nodeports":  {w.addNodePorts, w.lastNodePortAnswers},
		"egressips":  {w.addEgressIPs, w.lastEgressIPTranslates},
		"egresspods": {w.addEgressPods, w.lastEgressPodIsMember},
	}
}

// push adds more and more objects of one kind until something fails, and measures each size. All
// else stays the same.
func (w *world) push(ctx context.Context) error {
	k, ok := w.kinds()[w.opt.Push]
	if !ok {
		return fmt.Errorf("%q cannot be pushed, but %s", w.opt.Push,
			strings.Join(slices.Sorted(maps.Keys(w.kinds())), ", "))
	}
	if err := w.grow(ctx, w.opt.Nodes); err != nil {
		return err
	}
	w.table = Table{Of: w.opt.Push}
	have := 0
	for _, n := range w.opt.Sizes {
		w.table.Sizes = append(w.table.Sizes, n)
		if err := w.pushTo(ctx, k, have, n); err != nil {
			return fmt.Errorf("%d %s: %w", n, w.opt.Push, err)
		}
		have = n
		w.say("%d %s are measured", n, w.opt.Push)
	}
	return nil
}

func (w *world) pushTo(ctx context.Context, k kind, first, end int) (err error) {
	defer func() { err = errors.Join(err, w.complaints(context.WithoutCancel(ctx))) }()
	before, err := w.spent(ctx)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := k.add(ctx, first, end); err != nil {
		return err
	}
	w.table.Add("all written", "s", time.Since(begin).Seconds())
	if err := k.seen(ctx, end); err != nil {
		return err
	}
	w.table.Add("first write until the last is seen", "s", time.Since(begin).Seconds())
	if err := w.settle(ctx); err != nil {
		return err
	}
	after, err := w.spent(ctx)
	if err != nil {
		return err
	}
	for _, n := range w.nodes {
		for _, name := range daemons() {
			key := n.Name() + ": " + name
			w.table.Add(key+": CPU of what was added", "s", (after.used[key].CPU - before.used[key].CPU).Seconds())
		}
	}
	if err := w.spend(ctx, "at rest", w.rest); err != nil {
		return err
	}
	if err := w.changes(ctx); err != nil {
		return err
	}
	return w.status(ctx)
}

// complaints prints the problems in `hairpin status` of the real nodes.
func (w *world) complaints(ctx context.Context) error {
	for _, n := range w.nodes {
		out, err := n.Exec(ctx, "sh", "-c", "hairpin status --output=wide --config-file="+agentConfig+
			" | grep -v -e 'in sync' -e ready; true")
		if err != nil {
			return err
		}
		w.say("%s:\n%s", n.Name(), out)
	}
	return nil
}

// answered waits until the first server replies to the first node's host at an address.
func (w *world) answered(ctx context.Context, to netip.AddrPort) error {
	_, err := lab.Until(ctx, w.nodes[0], to, w.pods[0].Name(), time.Second*time.Duration(w.opt.Slow),
		w.patience(30*time.Second))
	return err
}

// pushed writes Services of a kind. Those before the last have endpoints on nodes that do not run,
// the last has the first server.
func (w *world) pushed(ctx context.Context, first, end int, spec func(i int) corev1.ServiceSpec) error {
	return parallel(ctx, first, end, func(ctx context.Context, i int) error {
		to := w.endpoints(i, 0)
		if i == end-1 {
			to = w.pods[0].IPs()[:1]
		}
		return w.makeServiceOf(ctx, fmt.Sprintf("push-%05d", i), spec(i), to)
	})
}

// pushedIP returns the cluster IP of pushed Service number i.
func (w *world) pushedIP(i int) netip.Addr { return clusterIP(w.opt.Services + 1 + i) }

func (w *world) addServices(ctx context.Context, first, end int) error {
	return w.pushed(ctx, first, end, func(i int) corev1.ServiceSpec {
		return specOf(w.pushedIP(i))
	})
}

func (w *world) lastServiceAnswers(ctx context.Context, end int) error {
	return w.answered(ctx, netip.AddrPortFrom(w.pushedIP(end-1), 80))
}

const firstNodePort = 30000

func (w *world) addNodePorts(ctx context.Context, first, end int) error {
	return w.pushed(ctx, first, end, func(i int) corev1.ServiceSpec {
		s := specOf(w.pushedIP(i))
		s.Type, s.Ports[0].NodePort = corev1.ServiceTypeNodePort, int32(firstNodePort+i)
		return s
	})
}

func (w *world) lastNodePortAnswers(ctx context.Context, end int) error {
	return w.answered(ctx, netip.AddrPortFrom(w.nodes[0].Addresses()[0].Addr(), uint16(firstNodePort+end-1)))
}

// manyPods returns the node and the address of pod number i on the nodes that do not run.
func manyPods(i int) (node, netip.Addr) {
	n := node(len(realNodes) + 1 + i/200)
	return n, n.pod(1 + i%200) // the first address belongs to the node
}

// addEndpoints adds endpoints to one Service, as the EndpointSlice controller does: a hundred per
// slice.
func (w *world) addEndpoints(ctx context.Context, first, end int) error {
	const service, each = "wide", 100
	if first == 0 {
		if err := w.makeService(ctx, service, w.pushedIP(0), nil); err != nil {
			return err
		}
	}
	for ; first < end; first += each {
		var to []netip.Addr
		for i := first; i < min(first+each, end); i++ {
			_, ip := manyPods(i)
			to = append(to, ip)
		}
		if err := w.makeSlice(ctx, service, fmt.Sprintf("%s-%05d", service, first), to); err != nil {
			return err
		}
	}
	return nil
}

// connectionsMeet opens connections to the Service with many endpoints, eight for each. It counts
// the endpoints that got some.
func (w *world) connectionsMeet(ctx context.Context, end int) error {
	if err := w.settle(ctx); err != nil {
		return err
	}
	w.others.forget()
	to := netip.AddrPortFrom(w.pushedIP(0), 80).String()
	before, err := w.usage(w.nodes[0], lab.VSwitchd)
	if err != nil {
		return err
	}
	begin := time.Now()
	answers := make([]bool, 8*end)
	err = parallel(ctx, 0, len(answers), func(_ context.Context, i int) error {
		return lab.Do(w.senders[0], func() error {
			c, err := net.DialTimeout("tcp4", to, time.Second*time.Duration(w.opt.Slow))
			if err == nil {
				_ = c.Close()
			}
			answers[i] = err == nil || errors.Is(err, syscall.ECONNREFUSED) // rejected for a node that does not run
			return nil
		})
	})
	if err != nil {
		return err
	}
	took := time.Since(begin)
	after, err := w.usage(w.nodes[0], lab.VSwitchd)
	if err != nil {
		return err
	}
	met, most := w.others.met()
	answered := 0
	for _, a := range answers {
		if a {
			answered++
		}
	}
	w.table.Add("connections that were answered", "%", 100*float64(answered)/float64(len(answers)))
	w.table.Add("endpoints that got one of 8 connections for each", "%", 100*float64(met)/float64(end))
	w.table.Add("connections", "1/s", float64(len(answers))/took.Seconds())
	w.table.Add("CPU of ovs-vswitchd for a connection", "µs",
		1000*millis(after[lab.VSwitchd].CPU-before[lab.VSwitchd].CPU)/float64(len(answers)))
	w.table.Add("connections of the busiest endpoint", "", float64(most))
	if met == 0 {
		return errors.New("no endpoint is reached")
	}
	return nil
}

// addEgressIPs creates EgressIPs, each for ten pods.
func (w *world) addEgressIPs(ctx context.Context, first, end int) error {
	const each = 10
	if err := parallel(ctx, first, end, w.makeEgressIP); err != nil {
		return err
	}
	w.size.egressIPs = end
	return parallel(ctx, each*first, each*end,
		func(ctx context.Context, i int) error { return w.makeEgressPod(ctx, i/each, i) })
}

func (w *world) makeEgressPod(ctx context.Context, e, i int) error {
	n, ip := manyPods(i)
	return w.makePodOf(ctx, n, egressNamespace(e), fmt.Sprintf("pushed-%05d", i), ip)
}

func (w *world) lastEgressIPTranslates(ctx context.Context, end int) error {
	return w.secondHas(ctx, "NAT", egressIP(end-1))
}

// addEgressPods adds pods to one EgressIP.
func (w *world) addEgressPods(ctx context.Context, first, end int) error {
	if first == 0 {
		if err := w.makeEgressIP(ctx, 0); err != nil {
			return err
		}
		w.size.egressIPs = 1
	}
	return parallel(ctx, first, end, func(ctx context.Context, i int) error { return w.makeEgressPod(ctx, 0, i) })
}

func (w *world) lastEgressPodIsMember(ctx context.Context, end int) error {
	_, ip := manyPods(end - 1)
	return w.secondHas(ctx, "Address_Set", ip)
}

// secondHas waits until a table of the egress node's Northbound database contains an address.
func (w *world) secondHas(ctx context.Context, table string, a netip.Addr) error {
	address := regexp.MustCompile(`\b` + regexp.QuoteMeta(a.String()) + `\b`)
	return w.wait(ctx, 30*time.Second, func(ctx context.Context) (bool, error) {
		out, err := northbound(ctx, w.nodes[1], table)
		return address.MatchString(out), err
	})
}
