package bench

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
)

// proof measures what pods get from Services that are OpenFlow flows and groups, from those of OVN, and from kube-proxy.
func (w *world) proof(ctx context.Context) error { return w.turns(ctx, w.ours, w.theirs, w.flows) }

// flowsWays gives a node's pods their flows, and the one way by a Service when it works.
func (w *world) flowsWays(ctx context.Context, s *side) ([]way, error) {
	if err := s.addPods(ctx); err != nil {
		return nil, err
	}
	if _, err := lab.Sink(ctx, s.pods[0], sink); err != nil {
		return nil, err
	}
	y := way{name: podWay, from: fromPod}
	var ports []*cluster.Frontend
	for i, port := range []uint16{inside, sink} {
		vip := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, 200}), uint16(80+i))
		ports = append(ports, frontend("server", vip, netip.AddrPortFrom(s.pods[0].IPs()[0], port)))
		if i == 0 {
			y.serve = vip
		} else {
			y.sink = vip
		}
	}
	if _, err := s.flows(ctx, ports...); err != nil {
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	return []way{y}, w.works(ctx, s.pods[1], y.serve)
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
		var list []*cluster.Frontend
		for i := range size {
			list = append(list, frontend(serviceName(i), vip(i), netip.MustParseAddrPort("10.244.1.250:8080"), netip.MustParseAddrPort("10.244.2.250:8080")))
		}
		if took, err = s.flows(ctx, list...); err != nil {
			return err
		}
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
