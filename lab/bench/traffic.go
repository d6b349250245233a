package bench

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"hairpin/lab"
	"hairpin/lab/probe"
)

// way is from where traffic comes, and by which address.
type way struct {
	name        string
	from        func(s *side) lab.Place
	serve, sink netip.AddrPort
}

// clientHost is a host beyond the nodes.
func (w *world) clientHost(ctx context.Context) (*lab.Host, error) {
	if h := w.lab.Host("client"); h != nil {
		return h, nil
	}
	return w.lab.StartHost(ctx, lab.HostConfig{Name: "client", Addresses: prefixes("172.18.0.100/16")})
}

const podWay = "pod → ClusterIP → pod"

func fromPod(s *side) lab.Place { return s.pods[1] }

// trafficOf is the name of the Service whose endpoint is a side's pod.
func trafficOf(s *side) string { return "traffic-" + s.node.Name() }

// flowing is what one side carries on one way.
type flowing struct {
	connections, megabits float64 // per second
	failed                int
}

// traffic measures connections per second and throughput.
func (w *world) traffic(ctx context.Context) error {
	if err := w.grow(ctx, w.opt.Sizes[0]); err != nil {
		return err
	}
	client, err := w.clientHost(ctx)
	if err != nil {
		return err
	}
	var datapath string
	var names []string
	results := [2][3]flowing{}
	err = w.each(ctx, func(ctx context.Context, s *side) error {
		if s.index == 0 {
			datapath = s.node.Datapath()
		}
		ways, err := w.ways(ctx, s, client)
		if err != nil {
			return err
		}
		names = names[:0]
		for i, way := range ways {
			names = append(names, way.name)
			if results[s.index][i], err = w.flow(ctx, s, way, 4*time.Second); err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
		}
		return w.unmake(ctx, trafficOf(s))
	})
	if err != nil {
		return err
	}
	var rows []row
	for i, name := range names {
		a, b := results[0][i], results[1][i]
		rows = append(rows, row{what: name + ", TCP connections", unit: "1/s", ours: a.connections, theirs: b.connections, more: true})
		rows = append(rows, row{what: name + ", one TCP stream", unit: "Mbit/s", ours: a.megabits, theirs: b.megabits, more: true})
	}
	w.print("Traffic, Open vSwitch's datapath is "+datapath+", kube-proxy's the kernel", rows)
	return nil
}

// ways starts the side, with a Service whose endpoint is a pod there, and gives the three ways to it when they work.
func (w *world) ways(ctx context.Context, s *side, client *lab.Host) ([]way, error) {
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
	first := int32(nodePort + 10*s.index) // both sides may be there at the same time
	cluster, err := w.makeNodePort(ctx, trafficOf(s), s.pods[0].IPs()[0].String(), first)
	if err != nil {
		return nil, err
	}
	node := s.node.Addresses()[0].Addr()
	at := netip.AddrPortFrom
	ways := []way{
		{"host → ClusterIP → pod", func(s *side) lab.Place { return s.node.Host }, at(cluster, 80), at(cluster, 81)},
		{podWay, fromPod, at(cluster, 80), at(cluster, 81)},
		{"outside → NodePort → pod", func(*side) lab.Place { return client }, at(node, uint16(first)), at(node, uint16(first+1))},
	}
	for _, way := range ways {
		if err := w.works(ctx, way.from(s), way.serve); err != nil {
			return nil, fmt.Errorf("%s: %w", way.name, err)
		}
	}
	return ways, nil
}

// works waits until a way works.
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

// flow measures one way, connections and one stream, each for so long.
func (w *world) flow(ctx context.Context, s *side, y way, long time.Duration) (f flowing, err error) {
	opened, err := lab.Load(ctx, y.from(s), probe.LoadConfig{To: y.serve, Workers: 8, Duration: long})
	if err != nil {
		return f, err
	}
	if opened.Failed > 0 {
		w.say("%s, %s: %d connections failed: %s", s.name, y.name, opened.Failed, opened.Error)
	}
	sent, err := lab.Load(ctx, y.from(s), probe.LoadConfig{To: y.sink, Duration: long})
	if err != nil {
		return f, err
	}
	f = flowing{float64(opened.Connections) / opened.Seconds, float64(sent.Bytes) * 8e-6 / sent.Seconds, opened.Failed}
	w.say("%s, %s: %.0f connections/s, %.0f Mbit/s", s.name, y.name, f.connections, f.megabits)
	return f, nil
}
