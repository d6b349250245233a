package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/watch"
)

// failover silences the node with most egress addresses, of those that do not run. It measures
// until the controller has moved all of them to others. With few nodes there is none.
func (w *world) failover(ctx context.Context) error {
	carriers, version, err := w.carriers(ctx)
	if err != nil {
		return err
	}
	count := map[node]int{}
	victim := node(0)
	for _, n := range carriers {
		if count[n]++; !n.real() && (count[n] > count[victim] || count[n] == count[victim] && n < victim) {
			victim = n
		}
	}
	if victim == 0 {
		return nil
	}
	used, err := w.nodes[0].Used(controllerDaemon)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := w.others.silence(ctx, victim, true); err != nil {
		return err
	}
	moved, err := w.leave(ctx, carriers, version, victim)
	if err != nil {
		return fmt.Errorf("wait until no egress address is on %s: %w", victim.name(), err)
	}
	after, err := w.nodes[0].Used(controllerDaemon)
	if err != nil {
		return err
	}
	w.table.Add("an egress node goes silent: its egress addresses", "", float64(count[victim]))
	w.table.Add("an egress node goes silent: until the first is on another", "s", moved[0].Sub(begin).Seconds())
	w.table.Add("an egress node goes silent: until all are on others", "s", moved[len(moved)-1].Sub(begin).Seconds())
	w.table.Add("an egress node goes silent: CPU of the controller", "ms", millis(after.CPU-used.CPU))
	if err := w.others.silence(ctx, victim, false); err != nil {
		return err
	}
	return w.settle(ctx)
}

// egressCarrier is the part of an EgressIP with its carrier. Each has one address here.
type egressCarrier struct {
	Metadata struct{ Name string }
	Status   struct{ Items []struct{ Node string } }
}

func (e *egressCarrier) carrier() node {
	if len(e.Status.Items) == 0 {
		return 0
	}
	return nodeNamed(e.Status.Items[0].Node)
}

// carriers returns the nodes of all EgressIPs by their status, 0 for none, and its resource
// version.
func (w *world) carriers(ctx context.Context) (map[string]node, string, error) {
	text, err := w.askEgressIPs().DoRaw(ctx)
	if err != nil {
		return nil, "", err
	}
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []egressCarrier
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, "", fmt.Errorf("read EgressIPs: %w", err)
	}
	m := map[string]node{}
	for i := range list.Items {
		m[list.Items[i].Metadata.Name] = list.Items[i].carrier()
	}
	return m, list.Metadata.ResourceVersion, nil
}

func (w *world) askEgressIPs() *rest.Request {
	return w.client.CoreV1().RESTClient().Get().AbsPath(watch.EgressIPPath()).SetHeader("Accept", "application/json")
}

// leave watches EgressIPs, from a resource version with these carriers, until all addresses of the
// victim are on other nodes. It returns the time of each move.
func (w *world) leave(ctx context.Context, carriers map[string]node, version string,
	victim node) (moved []time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.patience(5*time.Second))
	defer cancel()
	stream, err := w.askEgressIPs().Param("watch", "true").Param("resourceVersion", version).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	left := 0
	for _, n := range carriers {
		if n == victim {
			left++
		}
	}
	for d := json.NewDecoder(stream); left > 0; {
		var event struct{ Object egressCarrier }
		if err := d.Decode(&event); err != nil {
			return nil, fmt.Errorf("%d are still there: %w", left, err)
		}
		name, now := event.Object.Metadata.Name, event.Object.carrier()
		if carriers[name] == victim && now != victim && now != 0 {
			left--
			moved = append(moved, time.Now())
		}
		carriers[name] = now
	}
	return moved, nil
}

// away stops the API server for Options.Away, if that is set. Existing Services stay served. Then
// all clients reconnect at once.
func (w *world) away(ctx context.Context) error {
	if w.opt.Away <= 0 {
		return nil
	}
	if err := w.server.Stop(); err != nil {
		return err
	}
	gone := time.Now()
	server := netip.AddrPortFrom(clusterIP(w.opt.Services), 80)
	for time.Since(gone) < w.opt.Away {
		if _, err := lab.Until(ctx, w.nodes[0], server, w.pods[w.flipped].Name(), time.Second*time.Duration(w.opt.Slow),
			w.patience(time.Second)); err != nil {
			return fmt.Errorf("while the API server is away: %w", err)
		}
		time.Sleep(min(time.Second, w.opt.Away-time.Since(gone)))
	}
	before, err := w.usage(w.nodes[0])
	if err != nil {
		return err
	}
	if w.server, err = lab.StartAPIServer(ctx, w.serverConfig); err != nil {
		return err
	}
	back := time.Now()
	if _, _, err := w.flip(ctx); err != nil {
		return err
	}
	took := time.Since(back)
	if err := w.settle(ctx); err != nil {
		return err
	}
	after, err := w.usage(w.nodes[0])
	if err != nil {
		return err
	}
	what := fmt.Sprintf("API server away for %s: ", w.opt.Away)
	w.table.Add(what+"ready again until a change arrives", "s", took.Seconds())
	for _, name := range []string{agentDaemon, lab.Northd, lab.Controller} {
		w.table.Add(what+"CPU of "+name, "ms", millis(after[name].CPU-before[name].CPU))
	}
	for _, n := range w.nodes {
		bytes, err := received(ctx, n)
		if err != nil {
			return err
		}
		w.table.Add(what+"bytes to the agent of "+n.Name(), "MB", float64(bytes)/1024/1024)
	}
	return nil
}

// cold starts the first node's OVN with empty databases and without flows, as after a
// reinstallation, and its agent.
func (w *world) cold(ctx context.Context) error {
	if w.opt.Away <= 0 {
		return nil
	}
	n := w.nodes[0]
	anew := []string{agentDaemon, lab.Northd, lab.Controller, lab.NB, lab.SB}
	for _, name := range anew {
		if err := n.Kill(ctx, name, syscall.SIGTERM); err != nil {
			return err
		}
	}
	forget := "rm -f /var/lib/ovn/*.db; ovs-ofctl -O OpenFlow15 del-flows br-int"
	if w.opt.Engine == cluster.EngineOpenFlow {
		forget += "; ovs-ofctl -O OpenFlow15 del-groups " + claims.ServiceBridge +
			"; ovs-ofctl -O OpenFlow15 del-flows " + claims.ServiceBridge
	}
	if _, err := n.Exec(ctx, "sh", "-c", forget); err != nil {
		return err
	}
	before, err := w.usage(n, lab.OVSDB, lab.VSwitchd)
	if err != nil {
		return err
	}
	begin := time.Now()
	for _, name := range []string{lab.NB, lab.SB, lab.Northd, lab.Controller, agentDaemon} {
		if err := n.Start(ctx, name); err != nil {
			return err
		}
	}
	server := netip.AddrPortFrom(clusterIP(w.opt.Services), 80)
	at, err := lab.Until(ctx, n, server, w.pods[w.flipped].Name(), 20*time.Millisecond*time.Duration(w.opt.Slow),
		w.patience(time.Minute))
	if err != nil {
		return err
	}
	if err := w.ready(ctx, n); err != nil {
		return err
	}
	if err := w.settle(ctx); err != nil {
		return err
	}
	after, err := w.usage(n)
	if err != nil {
		return err
	}
	w.table.Add("cold start with empty OVN databases: until a Service answers", "s", at.Sub(begin).Seconds())
	for _, name := range daemons() {
		w.table.Add("cold start: CPU of "+name, "s", (after[name].CPU - before[name].CPU).Seconds())
	}
	return nil
}

// status measures `hairpin status`.
func (w *world) status(ctx context.Context) error {
	var times []time.Duration
	for range w.opt.Rounds {
		begin := time.Now()
		if _, err := w.saysStatus(ctx); err != nil {
			return err
		}
		times = append(times, time.Since(begin))
	}
	w.table.Add("`hairpin status` on node-a, worst", "ms", quantile(times, 1))
	return nil
}

// saysStatus returns the output of `hairpin status` on the first node.
func (w *world) saysStatus(ctx context.Context, args ...string) (string, error) {
	return w.nodes[0].Exec(ctx, "sh", "-c", "hairpin status --config-file="+agentConfig+" "+strings.Join(args, " ")+
		"; [ $? -le 1 ]")
}

// statusOfAll measures `kubectl hairpin status`, which is `hairpin status --all`. It runs a command
// in each agent's pod.
func (w *world) statusOfAll(ctx context.Context) error {
	whole, err := w.saysStatus(ctx, "--output=json")
	if err != nil {
		return err
	}
	report, err := w.saysStatus(ctx, "--output=json", "--brief")
	if err != nil {
		return err
	}
	w.kubelets.report, w.kubelets.brief = []byte(whole), []byte(report)
	if err := w.makeAgentPods(ctx); err != nil {
		return err
	}
	if err := w.settle(ctx); err != nil {
		return err
	}
	var times []time.Duration
	wire, err := counted(w.api)
	if err != nil {
		return err
	}
	before, err := w.server.Used()
	if err != nil {
		return err
	}
	for range w.opt.Rounds {
		begin := time.Now()
		out, err := w.saysStatus(ctx, "--all", "--output=wide", "--kubeconfig=/etc/hairpin/kubeconfig")
		if err != nil {
			return err
		}
		if !strings.Contains(out, fmt.Sprintf("\n%d nodes: ", w.size.nodes)) || strings.Contains(out, " no answer") {
			return fmt.Errorf("`hairpin status --all` does not say that %d nodes answer:\n%s", w.size.nodes,
				out[max(0, len(out)-2000):])
		}
		if n := strings.Count(out, "\n"+egressNamespace(0)+" "); w.size.egressIPs > 0 && n != 1 {
			return fmt.Errorf("`hairpin status --all` tells %d times where the first egress address is:\n%s", n,
				out[max(0, len(out)-2000):])
		}
		times = append(times, time.Since(begin))
	}
	after, err := w.server.Used()
	if err != nil {
		return err
	}
	now, err := counted(w.api)
	if err != nil {
		return err
	}
	rounds := float64(w.opt.Rounds)
	w.table.Add("`kubectl hairpin status`, worst", "s", quantile(times, 1)/1000)
	w.table.Add("`kubectl hairpin status`: a node's report", "kB", float64(len(report))/1024)
	w.table.Add("`kubectl hairpin status`: bytes that the API server gets and sends", "MB",
		float64(now.RxBytes+now.TxBytes-wire.RxBytes-wire.TxBytes)/1024/1024/rounds)
	w.table.Add("`kubectl hairpin status`: CPU of the API server", "s", (after.CPU-before.CPU).Seconds()/rounds)
	return nil
}
