package scale

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"hairpin/lab"
)

// daemons returns the daemons of a node.
func daemons() []string { return append([]string{agentDaemon}, lab.AllDaemons()...) }

// usage returns the usage of a node's daemons: of all, unless some are named.
func (w *world) usage(n *lab.Node, names ...string) (map[string]lab.Usage, error) {
	if names == nil {
		names = daemons()
	}
	m := map[string]lab.Usage{}
	for _, name := range names {
		u, err := n.Used(name)
		if err != nil {
			return nil, err
		}
		m[name] = u
	}
	return m, nil
}

// measure measures everything at the current size of the cluster.
func (w *world) measure(ctx context.Context) error {
	for _, part := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"rest", func(ctx context.Context) error { return w.spend(ctx, "at rest", w.rest) }},
		{"churn", func(ctx context.Context) error { return w.spend(ctx, "in churn", w.churn) }},
		{"changes", w.changes},
		{"joins and leaves", w.membership},
		{"restart", w.restart},
		{"tunnels", w.tunnels},
		{"status", w.status},
		{"status of all nodes", w.statusOfAll},
		{"a silent egress node", w.failover},
		{"cold start", w.cold},
		{"an API server that is away", w.away},
	} {
		begin := time.Now()
		if err := part.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		w.say("%d nodes: %s measured in %.1f s", w.size.nodes, part.name, time.Since(begin).Seconds())
	}
	return nil
}

// rest does nothing for a while.
func (w *world) rest(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(w.opt.Window):
		return nil
	}
}

// spend measures the usage of everything during do: CPU per time, and memory at the end.
func (w *world) spend(ctx context.Context, when string, do func(context.Context) error) error {
	begin := time.Now()
	before, err := w.spent(ctx)
	if err != nil {
		return err
	}
	if err := do(ctx); err != nil {
		return err
	}
	after, err := w.spent(ctx)
	if err != nil {
		return err
	}
	took := time.Since(begin)
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	one, _, _ := strings.Cut(string(load), " ")
	busy, err := strconv.ParseFloat(one, 64)
	if err != nil {
		return fmt.Errorf("/proc/loadavg: %w", err)
	}
	w.table.Add("load of the machine "+when, "", busy)
	for _, n := range w.nodes {
		var total lab.Usage
		for _, name := range daemons() {
			key := n.Name() + ": " + name
			u := lab.Usage{CPU: after.used[key].CPU - before.used[key].CPU, RSS: after.used[key].RSS}
			total.CPU, total.RSS = total.CPU+u.CPU, total.RSS+u.RSS
			w.addUsage(key, when, u, took)
		}
		w.addUsage(n.Name()+": all daemons", when, total, took)
		w.table.Add(n.Name()+": bytes from the API server, "+when, "kB/s",
			float64(after.bytes[n.Name()]-before.bytes[n.Name()])/1024/took.Seconds())
	}
	for _, key := range []string{controllerDaemon, "API server"} {
		w.addUsage(key, when, lab.Usage{CPU: after.used[key].CPU - before.used[key].CPU, RSS: after.used[key].RSS},
			took)
	}
	w.table.Add("API server: requests of all clients, "+when, "1/s", (after.requests-before.requests)/took.Seconds())
	w.table.Add("packets to all nodes that do not run, "+when, "1/s",
		float64(after.packets-before.packets)/took.Seconds())
	return nil
}

func (w *world) addUsage(of, when string, u lab.Usage, took time.Duration) {
	w.table.Add(of+": CPU "+when, "% of a core", 100*u.CPU.Seconds()/took.Seconds())
	w.table.Add(of+": memory "+when, "MB", float64(u.RSS)/1024)
}

// spent is the usage so far.
type spent struct {
	used     map[string]lab.Usage
	bytes    map[string]int // that each agent has received from the API server
	requests float64        // to the API server
	packets  uint64         // to the nodes that do not run
}

func (w *world) spent(ctx context.Context) (s spent, err error) {
	s.used, s.bytes = map[string]lab.Usage{}, map[string]int{}
	for _, n := range w.nodes {
		used, err := w.usage(n)
		if err != nil {
			return s, err
		}
		for name, u := range used {
			s.used[n.Name()+": "+name] = u
		}
		if s.bytes[n.Name()], err = received(ctx, n); err != nil {
			return s, err
		}
	}
	if s.used[controllerDaemon], err = w.nodes[0].Used(controllerDaemon); err != nil {
		return s, err
	}
	if s.used["API server"], err = w.server.Used(); err != nil {
		return s, err
	}
	err = w.metric(ctx, "apiserver_request_total", func(_ string, value float64) { s.requests += value })
	if err != nil {
		return s, err
	}
	s.packets, err = w.others.packets()
	return s, err
}

// received returns how many bytes the agent of a node has received over its current connections to
// the API server.
func received(ctx context.Context, n *lab.Node) (sum int, err error) {
	out, err := n.Exec(ctx, "ss", "-Htnpi", "dport = :6443")
	if err != nil {
		return 0, err
	}
	ours := fmt.Sprintf("pid=%d,", n.Pid(agentDaemon))
	counts := false
	for line := range strings.Lines(out) {
		if strings.Contains(line, "users:") {
			counts = strings.Contains(line, ours)
		}
		for word := range strings.FieldsSeq(line) {
			if value, ok := strings.CutPrefix(word, "bytes_received:"); ok && counts {
				bytes, err := strconv.Atoi(value)
				if err != nil {
					return 0, fmt.Errorf("ss: %w", err)
				}
				sum += bytes
			}
		}
	}
	return sum, nil
}

// flip moves the probed Service to the other server. It returns the time from the write to the
// reply on the first node, and that of the write.
func (w *world) flip(ctx context.Context) (took, wrote time.Duration, err error) {
	w.flipped = 1 - w.flipped
	pod := w.pods[w.flipped]
	begin, done := time.Now(), make(chan error, 1)
	go func() {
		err := w.pointTo(ctx, probedService, pod.IPs()[:1])
		wrote = time.Since(begin)
		done <- err
	}()
	at, err := lab.Until(ctx, w.nodes[0], netip.AddrPortFrom(clusterIP(w.opt.Services), 80), pod.Name(),
		20*time.Millisecond*time.Duration(w.opt.Slow), w.patience(10*time.Second))
	if e := <-done; e != nil {
		err = e
	}
	return at.Sub(begin), wrote, err
}

// changes measures one change after the other, on a cluster at rest.
func (w *world) changes(ctx context.Context) error {
	var times, writes []time.Duration
	for range 5 * w.opt.Rounds {
		took, wrote, err := w.flip(ctx)
		if err != nil {
			return err
		}
		times, writes = append(times, took), append(writes, wrote)
		time.Sleep(200 * time.Millisecond) // until remaining work of the change is done
	}
	w.table.Add("one endpoint changed: API write to the answer on node-a, median", "ms", quantile(times, 0.5))
	w.table.Add("one endpoint changed: the same, worst", "ms", quantile(times, 1))
	w.table.Add("one endpoint changed: the API write alone, median", "ms", quantile(writes, 0.5))
	return nil
}

// restart measures a terminated and restarted agent.
func (w *world) restart(ctx context.Context) error {
	for _, n := range w.nodes {
		begin := time.Now()
		if err := n.Kill(ctx, agentDaemon, syscall.SIGTERM); err != nil {
			return err
		}
		if err := n.Start(ctx, agentDaemon); err != nil {
			return err
		}
		if err := w.ready(ctx, n); err != nil {
			return err
		}
		took := time.Since(begin)
		if err := w.settle(ctx); err != nil {
			return err
		}
		u, err := n.Used(agentDaemon)
		if err != nil {
			return err
		}
		bytes, err := received(ctx, n)
		if err != nil {
			return err
		}
		w.table.Add(n.Name()+": agent restarted, SIGTERM to ready", "s", took.Seconds())
		w.table.Add(n.Name()+": agent restarted, CPU of the new one", "s", u.CPU.Seconds())
		w.table.Add(n.Name()+": agent restarted, bytes from the API server", "MB", float64(bytes)/1024/1024)
	}
	return nil
}

// tunnels counts the tunnel state of a real node for the others.
func (w *world) tunnels(ctx context.Context) error {
	n := w.nodes[0]
	for _, c := range []struct {
		what string
		args []string
	}{
		{"tunnels", []string{"sh", "-c", "ovs-ofctl -O OpenFlow15 --no-stats dump-flows br-tun | grep tun_src="}},
		{"flows of br-int", []string{"sh", "-c",
			"ovs-ofctl -O OpenFlow15 --no-stats dump-flows br-int | grep -v ^OFPST"}},
		{"logical flows", []string{"ovsdb-client", "-f", "csv", "--no-headings", "dump", "unix:/run/ovn/ovnsb_db.sock",
			"OVN_Southbound", "Logical_Flow", "_uuid"}},
	} {
		out, err := n.Exec(ctx, c.args...)
		if err != nil {
			return err
		}
		lines := 0
		for line := range strings.Lines(out) {
			if strings.TrimSpace(line) != "" {
				lines++
			}
		}
		w.table.Add(n.Name()+": "+c.what, "", float64(lines))
	}
	watches, err := w.watches(ctx)
	if err != nil {
		return err
	}
	for _, resource := range slices.Sorted(maps.Keys(watches)) {
		w.table.Add("API server: watches of "+resource, "", watches[resource])
	}
	return nil
}

// watches returns the open watches of the API server by resource, including Kubernetes' own.
func (w *world) watches(ctx context.Context) (map[string]float64, error) {
	ours := []string{"nodes", "pods", "services", "endpointslices", "namespaces", "egressips", "egressservices"}
	m := map[string]float64{}
	err := w.metric(ctx, "apiserver_longrunning_requests", func(labels string, value float64) {
		_, rest, _ := strings.Cut(labels, `resource="`)
		resource, _, _ := strings.Cut(rest, `"`)
		if strings.Contains(labels, `verb="WATCH"`) && slices.Contains(ours, resource) {
			m[resource] += value
		}
	})
	return m, err
}

// metric calls f for each line of a metric of the API server.
func (w *world) metric(ctx context.Context, name string, f func(labels string, value float64)) error {
	text, err := w.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("metrics of the API server: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		labels, ok := strings.CutPrefix(line, name+"{")
		if !ok {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
		if err != nil {
			return fmt.Errorf("metrics of the API server: %w", err)
		}
		f(labels, value)
	}
	return nil
}
