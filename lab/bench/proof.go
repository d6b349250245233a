package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"hairpin/lab"
	"hairpin/lab/probe"
)

// proofRounds is how often each way is measured on each side. They take turns, so that what else the machine does meets them all.
const (
	proofRounds = 5
	proofLong   = 2 * time.Second
)

// carried is what one side carried on one way, round by round.
type carried struct {
	connections, megabits []float64 // per second
	failed                int
}

// proof measures what pods get from Services that are OpenFlow flows and groups, from those of OVN, and from kube-proxy. All three nodes run
// at the same time, and one of them works.
func (w *world) proof(ctx context.Context) (err error) {
	if err := w.grow(ctx, w.opt.Sizes[0]); err != nil {
		return err
	}
	client, err := w.clientHost(ctx)
	if err != nil {
		return err
	}
	var sides []*side
	defer func() {
		for _, s := range sides {
			err = errors.Join(err, s.node.Stop())
		}
	}()
	var ways [3][]way // by side
	for _, start := range []func(context.Context) (*side, error){w.ours, w.theirs, w.flows} {
		s, err := start(ctx)
		if s != nil {
			sides = append(sides, s)
		}
		if err != nil {
			return err
		}
		if s.index == 2 {
			ways[2], err = w.flowsWays(ctx, s)
		} else {
			ways[s.index], err = w.ways(ctx, s, client)
		}
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", s.name, err, s.logEnd())
		}
		direct := netip.AddrPortFrom(s.pods[0].IPs()[0], inside)
		ways[s.index] = append([]way{{"pod → pod", fromPod, direct, netip.AddrPortFrom(direct.Addr(), sink)}}, ways[s.index]...)
	}
	var results [4][3]carried // by way, by side
	for range proofRounds {
		for i, one := range ways[0] {
			for j, s := range sides {
				k := slices.IndexFunc(ways[j], func(y way) bool { return y.name == one.name })
				if k < 0 {
					continue
				}
				// A quiet datapath has forgotten its flows; what it costs to make them again is not what is compared.
				if _, err := lab.Load(ctx, ways[j][k].from(s), probe.LoadConfig{To: ways[j][k].serve, Workers: 8, Duration: proofLong / 2}); err != nil {
					return fmt.Errorf("%s: %w", one.name, err)
				}
				f, err := w.flow(ctx, s, ways[j][k], proofLong)
				if err != nil {
					return fmt.Errorf("%s: %w", one.name, err)
				}
				c := &results[i][j]
				c.connections, c.megabits, c.failed = append(c.connections, f.connections), append(c.megabits, f.megabits), c.failed+f.failed
			}
		}
	}
	for _, s := range sides[:2] {
		if err := w.unmake(ctx, trafficOf(s)); err != nil {
			return err
		}
	}
	w.printProof(sides[0].node.Datapath(), ways[0], results)
	return nil
}

func (w *world) printProof(datapath string, ways []way, results [4][3]carried) {
	fmt.Fprintf(w.opt.Out, "\nMedian (worst) of %d rounds in turn, and the median's ratio to kube-proxy's; Open vSwitch's datapath is %s\n%-44s %20s %27s %27s %6s\n",
		proofRounds, datapath, "", "KUBE-PROXY", "HAIRPIN", "FLOWS", "FAILED")
	for i, way := range ways {
		r := &results[i]
		for _, x := range []struct {
			what string
			of   func(carried) []float64
		}{{"TCP connections, 1/s", func(c carried) []float64 { return c.connections }}, {"one TCP stream, Mbit/s", func(c carried) []float64 { return c.megabits }}} {
			theirs := median(x.of(r[1]))
			fmt.Fprintf(w.opt.Out, "%-44s %20s %27s %27s %6d\n", way.name+", "+x.what, beside(x.of(r[1]), 0), beside(x.of(r[0]), theirs), beside(x.of(r[2]), theirs), r[0].failed+r[1].failed+r[2].failed)
		}
	}
}

// flowsWays gives a node's pods their flows, and the one way by a Service when it works.
func (w *world) flowsWays(ctx context.Context, s *side) ([]way, error) {
	if err := s.addPods(ctx); err != nil {
		return nil, err
	}
	if _, err := lab.Sink(ctx, s.pods[0], sink); err != nil {
		return nil, err
	}
	lines, y := pathFlows(1+len(s.pods)), way{name: podWay, from: fromPod}
	for i, port := range []uint16{inside, sink} {
		vip := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, 200}), uint16(80+i))
		lines = append(lines, serviceFlows(1+i, vip, netip.AddrPortFrom(s.pods[0].IPs()[0], port))...)
		if i == 0 {
			y.serve = vip
		} else {
			y.sink = vip
		}
	}
	if err := bundle(ctx, s.node, lines); err != nil {
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	return []way{y}, w.works(ctx, s.pods[1], y.serve)
}

func median(list []float64) float64 { return slices.Sorted(slices.Values(list))[len(list)/2] }

// beside shows the median and the worst of some figures, and the ratio to another median.
func beside(list []float64, to float64) string {
	if len(list) == 0 {
		return "-"
	}
	text := fmt.Sprintf("%s (%s)", number(median(list)), number(slices.Min(list)))
	if to > 0 {
		text += fmt.Sprintf("  %.2f", median(list)/to)
	}
	return text
}

// groups measures the memory of so many Services, each with two endpoints, as flows and groups beside that of today's daemons.
func (w *world) groups(ctx context.Context) error {
	for _, size := range w.opt.Sizes {
		if err := w.grow(ctx, size); err != nil {
			return err
		}
		if err := w.groupsOf(ctx, size); err != nil {
			return fmt.Errorf("%d Services: %w", size, err)
		}
	}
	return nil
}

func (w *world) groupsOf(ctx context.Context, size int) error {
	resident := func(s *side, start func(*side) error) (map[string]lab.Usage, error) {
		defer func() { _ = s.node.Stop() }() // what it says is of no use without the figures
		if err := start(s); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", s.name, err, s.logEnd())
		}
		time.Sleep(rest)
		return usedBy(s)
	}
	ours, err := w.ours(ctx)
	if err != nil {
		return err
	}
	today, err := resident(ours, func(s *side) error {
		if err := w.pointTo(ctx, size-1, serverAddress, outside); err != nil {
			return err
		}
		begin := time.Now()
		if err := s.start(ctx); err != nil {
			return err
		}
		_, err := w.until(ctx, s, vip(size-1), "server", begin, 30*time.Second)
		return err
	})
	if err != nil {
		return err
	}
	flows, err := w.flows(ctx)
	if err != nil {
		return err
	}
	var took, cpu time.Duration
	var before lab.Usage
	with, err := resident(flows, func(s *side) (err error) {
		if _, err = w.flowsWays(ctx, s); err != nil {
			return err
		}
		if before, err = s.node.Used(lab.VSwitchd); err != nil {
			return err
		}
		var lines []string
		for i := range size {
			lines = append(lines, serviceFlows(100+i, vip(i), netip.MustParseAddrPort("10.244.1.250:8080"), netip.MustParseAddrPort("10.244.2.250:8080"))...)
		}
		begin := time.Now()
		if err := bundle(ctx, s.node, lines); err != nil {
			return err
		}
		took = time.Since(begin)
		after, err := s.node.Used(lab.VSwitchd)
		cpu = after.CPU - before.CPU
		return err
	})
	if err != nil {
		return err
	}
	mega := func(u lab.Usage) float64 { return float64(u.RSS) / 1024 }
	fmt.Fprintf(w.opt.Out, "\nResident memory, MB, %d Services with 2 endpoints each\n%-40s %10s %10s\n", size, "", "OVN", "FLOWS")
	with["hairpin"] = today["hairpin"]
	for _, name := range ours.all {
		fmt.Fprintf(w.opt.Out, "%-40s %10s %10s\n", name, number(mega(today[name])), number(mega(with[name])))
	}
	fmt.Fprintf(w.opt.Out, "%-40s %10s %10s\n(hairpin is today's agent in both; %s without the flows: %s)\n", "all", number(mega(sum(today))), number(mega(sum(with))), lab.VSwitchd, number(mega(before)))
	fmt.Fprintf(w.opt.Out, "All groups and flows in one bundle: %.2f s, %.2f s of CPU in %s\n", took.Seconds(), cpu.Seconds(), lab.VSwitchd)
	return nil
}
