package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/lab"
	"hairpin/lab/probe"
)

// way is a path of traffic: its client and the address used.
type way struct {
	name        string
	from        func(s *side) lab.Place
	serve, sink netip.AddrPort
}

// clientHost returns a host outside the cluster.
func (w *world) clientHost(ctx context.Context) (*lab.Host, error) {
	if h := w.lab.Host("client"); h != nil {
		return h, nil
	}
	return w.lab.StartHost(ctx, lab.HostConfig{Name: "client", Addresses: prefixes("172.18.0.100/16")})
}

func fromPod(s *side) lab.Place { return s.pods[1] }

// trafficOf returns the names of the Services whose endpoint is a side's pod, with policy Cluster
// and Local.
func trafficOf(s *side) [2]string {
	name := "traffic-" + s.node.Name()
	return [2]string{name, name + "-local"}
}

// carried holds the results of one path, round by round.
type carried struct {
	connections, megabits []float64 // per second
	failed                int
}

// connect opens connections for a while.
func (c *carried) connect(ctx context.Context, from lab.Place, to netip.AddrPort,
	long time.Duration) (probe.LoadReport, error) {
	r, err := lab.Load(ctx, from, probe.LoadConfig{To: to, Workers: 8, Duration: long})
	if err != nil {
		return r, err
	}
	c.connections, c.failed = append(c.connections, float64(r.Connections)/r.Seconds), c.failed+r.Failed
	return r, nil
}

// stream sends one stream for a while.
func (c *carried) stream(ctx context.Context, from lab.Place, to netip.AddrPort, long time.Duration) error {
	r, err := lab.Load(ctx, from, probe.LoadConfig{To: to, Duration: long})
	if err != nil {
		return err
	}
	c.megabits = append(c.megabits, float64(r.Bytes)*8e-6/r.Seconds)
	return nil
}

// traffic measures connections per second and throughput of Services.
func (w *world) traffic(ctx context.Context) error {
	if len(w.engines()) == 1 {
		return w.turns(ctx, w.ours, w.theirs)
	}
	err := w.turns(ctx, w.ours, w.theirs, w.second)
	// The objects are kept for the next run, which has one node less.
	return errors.Join(err, w.client.CoreV1().Nodes().Delete(context.WithoutCancel(ctx), nodeNames[secondNode],
		metav1.DeleteOptions{}))
}

// turns measures the traffic of several sides. All their nodes run, but only one has traffic at a
// time. They take turns, so that other load of the machine affects all.
func (w *world) turns(ctx context.Context, starts ...func(context.Context) (*side, error)) (err error) {
	if err := w.grow(ctx, w.opt.Sizes[0]); err != nil {
		return err
	}
	var sides []*side
	defer func() {
		for _, s := range sides {
			err = errors.Join(err, s.node.Stop())
		}
	}()
	ways := make([][]way, len(starts)) // by side
	for _, start := range starts {
		s, err := start(ctx)
		if s != nil {
			sides = append(sides, s)
		}
		if err != nil {
			return err
		}
		if ways[s.index], err = w.ways(ctx, s); err != nil {
			return fmt.Errorf("%s: %w\n%s", s.name, err, s.logEnd())
		}
		direct := netip.AddrPortFrom(s.pods[0].IPs()[0], inside)
		ways[s.index] = append([]way{{"pod → pod", fromPod, direct, netip.AddrPortFrom(direct.Addr(), sink)}},
			ways[s.index]...)
		ways[s.index] = slices.DeleteFunc(ways[s.index], func(y way) bool { return !w.match.MatchString(y.name) })
		if len(ways[s.index]) == 0 {
			return fmt.Errorf("no way matches %q", w.opt.Ways)
		}
	}
	results := make([][3]carried, len(ways[0])) // by path, by side
	order := slices.Clone(sides)
	for range w.opt.Turns {
		for i := range ways[0] {
			for _, s := range order {
				one := ways[s.index][i]
				// An idle datapath has evicted its flows. The cost to create them again is not
				// measured.
				if _, err := lab.Load(ctx, one.from(s),
					probe.LoadConfig{To: one.serve, Workers: 8, Duration: turnLong / 2}); err != nil {
					return fmt.Errorf("%s: %w", one.name, err)
				}
				if err := w.flow(ctx, s, one, &results[i][s.index]); err != nil {
					return fmt.Errorf("%s: %w", one.name, err)
				}
			}
		}
		slices.Reverse(order) // a machine may become faster over time: an emulator has translated more
	}
	for _, s := range sides {
		for _, name := range trafficOf(s) {
			if err := w.unmake(ctx, name); err != nil {
				return err
			}
		}
	}
	w.printTurns(sides, ways[0], results)
	return nil
}

func (w *world) printTurns(sides []*side, ways []way, results [][3]carried) {
	fmt.Fprintf(w.opt.Out,
		"\nMedian (worst) of %d rounds in turn, and the median of each round's ratio to kube-proxy's; Open "+
			"vSwitch's datapath is %s\n%-44s %20s",
		w.opt.Turns, sides[0].node.Datapath(), "", "KUBE-PROXY")
	ours := slices.Concat(sides[:1], sides[2:])
	for _, s := range ours {
		fmt.Fprintf(w.opt.Out, " %27s", strings.ToUpper(s.name))
	}
	fmt.Fprintf(w.opt.Out, " %6s\n", "FAILED")
	for i, way := range ways {
		r := &results[i]
		for _, x := range []struct {
			what string
			of   func(carried) []float64
		}{{"TCP connections, 1/s", func(c carried) []float64 { return c.connections }},
			{"one TCP stream, Mbit/s", func(c carried) []float64 { return c.megabits }}} {
			theirs := x.of(r[1])
			fmt.Fprintf(w.opt.Out, "%-44s %20s", way.name+", "+x.what, beside(theirs, nil))
			for _, s := range ours {
				fmt.Fprintf(w.opt.Out, " %27s", beside(x.of(r[s.index]), theirs))
			}
			fmt.Fprintf(w.opt.Out, " %6d\n", r[0].failed+r[1].failed+r[2].failed)
		}
	}
}

func median(list []float64) float64 { return slices.Sorted(slices.Values(list))[len(list)/2] }

// told formats the median and the worst of some figures.
func told(list []float64, worst func([]float64) float64) string {
	return fmt.Sprintf("%s (%s)", number(median(list)), number(worst(list)))
}

// ratio returns the median of the ratios of two sides in the same round. A machine may be twice as
// fast in one round as in the next.
func ratio(of, to []float64) float64 {
	var list []float64
	for i := range min(len(of), len(to)) {
		list = append(list, of[i]/to[i])
	}
	return median(list)
}

// beside formats the median and the worst of some figures, and the ratio to others, if any.
func beside(list, to []float64) string {
	if len(list) == 0 {
		return "-"
	}
	text := told(list, slices.Min[[]float64])
	if len(to) > 0 {
		text += fmt.Sprintf("  %.2f", ratio(list, to))
	}
	return text
}

// ways starts the side and a Service with an endpoint in a pod there. It returns the paths to it
// when they work.
func (w *world) ways(ctx context.Context, s *side) ([]way, error) {
	client, err := w.clientHost(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	if err := s.addPods(ctx); err != nil {
		return nil, err
	}
	if _, err := lab.Sink(ctx, s.pods[0], sink); err != nil {
		return nil, err
	}
	first := int32(nodePort + 10*s.index) // all sides may exist at the same time
	names := trafficOf(s)
	cluster, err := w.makeNodePort(ctx, names[0], s, first, corev1.ServiceExternalTrafficPolicyCluster)
	if err != nil {
		return nil, err
	}
	own := first + 2 // with policy Local, clients keep their address
	if _, err := w.makeNodePort(ctx, names[1], s, own, corev1.ServiceExternalTrafficPolicyLocal); err != nil {
		return nil, err
	}
	node := s.node.Addresses()[0].Addr()
	at := netip.AddrPortFrom
	outside := func(*side) lab.Place { return client }
	ways := []way{
		{"host → ClusterIP → pod", func(s *side) lab.Place { return s.node.Host }, at(cluster, 80), at(cluster, 81)},
		{"pod → ClusterIP → pod", fromPod, at(cluster, 80), at(cluster, 81)},
		{"outside → NodePort → pod", outside, at(node, uint16(first)), at(node, uint16(first+1))},
		{"outside → NodePort, Local → pod", outside, at(node, uint16(own)), at(node, uint16(own+1))},
	}
	for _, way := range ways {
		if err := w.works(ctx, way.from(s), way.serve); err != nil {
			return nil, fmt.Errorf("%s: %w", way.name, err)
		}
	}
	return ways, nil
}

// works waits until a path works.
func (w *world) works(ctx context.Context, from lab.Place, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, w.patience(3*time.Second))
	defer cancel()
	for {
		a := lab.Get(ctx, from, probe.Request{Protocol: "tcp", To: to, Timeout: time.Second})
		if a.Error == "" {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("from %s to %s: %s", from.Name(), to, a.Error)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// flow measures one path once, connections and one stream, and adds the results.
func (w *world) flow(ctx context.Context, s *side, y way, c *carried) error {
	opened, err := c.connect(ctx, y.from(s), y.serve, turnLong)
	if err != nil {
		return err
	}
	if opened.Failed > 0 {
		w.say("%s, %s: %d connections failed: %s", s.name, y.name, opened.Failed, opened.Error)
	}
	if err := c.stream(ctx, y.from(s), y.sink, turnLong); err != nil {
		return err
	}
	w.say("%s, %s: %.0f connections/s, %.0f Mbit/s", s.name, y.name, c.connections[len(c.connections)-1],
		c.megabits[len(c.megabits)-1])
	return nil
}
