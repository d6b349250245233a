package scale

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/kube"
	"hairpin/lab"
	"hairpin/watch"
)

// end measures once, with all nodes: another controller takes over, and everything is deleted.
func (w *world) end(ctx context.Context) error {
	if err := w.leaders(ctx); err != nil {
		return fmt.Errorf("another controller leads: %w", err)
	}
	w.say("%d nodes: changes of the leader measured", w.size.nodes)
	if err := w.clear(ctx); err != nil {
		return fmt.Errorf("everything is deleted: %w", err)
	}
	w.say("all that was deleted is gone")
	return nil
}

// leaders measures how long a new node waits for its ID after the leading controller was killed,
// and after it was terminated. Then another leads.
func (w *world) leaders(ctx context.Context) error {
	if err := w.nodes[1].StartDaemon(ctx, controllerDaemon, "hairpin", "controller", "--config-file="+
		agentConfig); err != nil {
		return err
	}
	for i, how := range []struct {
		what   string
		signal syscall.Signal
	}{{"the leading controller is killed", syscall.SIGKILL}, {"the leading controller is ended", syscall.SIGTERM}} {
		if err := w.settle(ctx); err != nil { // the other catches up
			return err
		}
		from, to, n := w.nodes[i], w.nodes[1-i], node(w.size.nodes+1)
		before, err := to.Used(controllerDaemon)
		if err != nil {
			return err
		}
		leader, err := w.leader(ctx)
		if err != nil {
			return err
		}
		begin := time.Now()
		if err := from.Kill(ctx, controllerDaemon, how.signal); err != nil {
			return err
		}
		w.table.Add(how.what+": until it is gone", "s", time.Since(begin).Seconds())
		if err := w.makeOther(ctx, n); err != nil {
			return err
		}
		another := func(ctx context.Context) (bool, error) {
			now, err := w.leader(ctx)
			return now != "" && now != leader, err
		}
		if err := w.wait(ctx, time.Minute, another); err != nil {
			return fmt.Errorf("%s: wait for another leader: %w", how.what, err)
		}
		w.table.Add(how.what+": until another leads", "s", time.Since(begin).Seconds())
		if err := w.wait(ctx, time.Minute,
			func(ctx context.Context) (bool, error) { return w.hasID(ctx, n) }); err != nil {
			return fmt.Errorf("%s: wait for a node ID: %w", how.what, err)
		}
		w.table.Add(how.what+": until a new node has its ID", "s", time.Since(begin).Seconds())
		if err := w.settle(ctx); err != nil {
			return err
		}
		after, err := to.Used(controllerDaemon)
		if err != nil {
			return err
		}
		w.table.Add(how.what+": CPU of the other", "ms", millis(after.CPU-before.CPU))
		w.table.Add(how.what+": memory of the other before", "MB", float64(before.RSS)/1024)
		w.table.Add(how.what+": memory of the other after", "MB", float64(after.RSS)/1024)
		if err := w.removeOther(ctx, n); err != nil {
			return err
		}
		if err := from.Start(ctx, controllerDaemon); err != nil {
			return err
		}
	}
	return nil
}

// leader returns the holder of the controllers' Lease; empty if there is none.
func (w *world) leader(ctx context.Context) (string, error) {
	l, err := w.client.CoordinationV1().Leases(kube.LeaseNamespace).Get(ctx, kube.LeaseName, metav1.GetOptions{})
	if err != nil || l.Spec.HolderIdentity == nil {
		return "", err
	}
	return *l.Spec.HolderIdentity, nil
}

func (w *world) hasID(ctx context.Context, n node) (bool, error) {
	got, err := w.client.CoreV1().Nodes().Get(ctx, n.name(), metav1.GetOptions{})
	return err == nil && got.Annotations[annotation.NodeID] != "", err
}

// clear deletes all nodes that do not run with their pods, all EgressIPs, and all Services but one,
// at once. It measures until the real nodes have no state of them.
func (w *world) clear(ctx context.Context) error {
	before, err := w.work(ctx)
	if err != nil {
		return err
	}
	begin, pause, stop := time.Now(), make(chan time.Duration, 1), make(chan struct{})
	failed := w.longestChange(ctx, stop, pause)
	err = w.deleteAll(ctx)
	deleted := time.Since(begin)
	if err == nil {
		err = w.wait(ctx, time.Minute, w.cleared)
	}
	gone := time.Since(begin)
	close(stop)
	slowest := <-pause
	if e := <-failed; err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	if err := w.settle(ctx); err != nil {
		return err
	}
	after, err := w.work(ctx)
	if err != nil {
		return err
	}
	w.table.Add("all deleted at once: API writes", "s", deleted.Seconds())
	w.table.Add("all deleted at once: until the real nodes have nothing of it", "s", gone.Seconds())
	w.table.Add("all deleted at once: slowest change of a Service meanwhile", "ms", millis(slowest))
	for _, name := range daemons() {
		w.table.Add("all deleted at once: CPU of "+name, "s", (after.used[name].CPU - before.used[name].CPU).Seconds())
		w.table.Add("all deleted at once: memory after, "+name, "MB", float64(after.used[name].RSS)/1024)
	}
	for _, name := range computing() {
		w.table.Add("all deleted at once: "+name+" computes all anew", "times",
			float64(after.recomputed[name]-before.recomputed[name]))
	}
	return nil
}

func (w *world) deleteAll(ctx context.Context) error {
	now := int64(0)
	at := metav1.DeleteOptions{GracePeriodSeconds: &now}
	g, ctx := errgroup.WithContext(ctx)
	each := func(del func(context.Context) error) { g.Go(func() error { return wholly(ctx, del) }) }
	each(func(ctx context.Context) error {
		return w.client.CoreV1().Nodes().DeleteCollection(ctx, at,
			metav1.ListOptions{LabelSelector: corev1.LabelHostname + " notin (" + strings.Join(realNodes, ",") + ")"})
	})
	each(func(ctx context.Context) error {
		return w.deleteAt(ctx, "/api/v1/namespaces/default/services", "metadata.name!=kubernetes,metadata.name!="+
			probedService)
	})
	each(func(ctx context.Context) error {
		return w.client.DiscoveryV1().EndpointSlices("default").DeleteCollection(ctx, at,
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + " notin (kubernetes," + probedService +
				")"})
	})
	each(func(ctx context.Context) error { return w.deleteAt(ctx, watch.EgressIPPath(), "") })
	others := metav1.ListOptions{FieldSelector: "spec.nodeName!=" + strings.Join(realNodes, ",spec.nodeName!=")}
	for _, ns := range []string{agentNamespace, metav1.NamespaceDefault} {
		each(func(ctx context.Context) error { return w.client.CoreV1().Pods(ns).DeleteCollection(ctx, at, others) })
	}
	g.Go(func() error {
		return parallel(ctx, 0, w.size.egressIPs, func(ctx context.Context, i int) error {
			return wholly(ctx, func(ctx context.Context) error {
				return w.client.CoreV1().Pods(egressNamespace(i)).DeleteCollection(ctx, at, others)
			})
		})
	})
	return g.Wait()
}

// wholly repeats a deletion until it is complete. The API server ends a request after a minute,
// when it has deleted a part. The error of such a request depends on its progress.
func wholly(ctx context.Context, del func(context.Context) error) error {
	const tries = 20
	for try := 1; ; try++ {
		if err := del(ctx); err == nil || ctx.Err() != nil || try == tries {
			return err
		}
	}
}

// deleteAt deletes the objects of a path that a field selector chooses.
func (w *world) deleteAt(ctx context.Context, path, fields string) error {
	return w.client.CoreV1().RESTClient().Delete().AbsPath(path).SetHeader("Accept",
		"application/json").Param("fieldSelector", fields).Do(ctx).Error()
}

// northbound returns a table of a node's Northbound database, as text.
func northbound(ctx context.Context, n *lab.Node, table string) (string, error) {
	return n.Exec(ctx, "ovsdb-client", "-f", "csv", "--no-headings", "dump", "unix:/run/ovn/ovnnb_db.sock",
		"OVN_Northbound", table)
}

// cleared reports whether both real nodes have tunnels to these two nodes only, and serve one
// Service of ours.
func (w *world) cleared(ctx context.Context) (bool, error) {
	for _, n := range w.nodes {
		if tunnels, err := tunnelsOf(ctx, n); err != nil || tunnels > len(realNodes)-1 {
			return false, err
		}
		if left, err := w.servicesOn(ctx, n); err != nil || left > 0 {
			return false, err
		}
	}
	return true, nil
}

// servicesOn returns how many deleted Services a node still has: load balancers, or groups beyond
// those of the remaining Services.
func (w *world) servicesOn(ctx context.Context, n *lab.Node) (int, error) {
	if w.opt.Engine == cluster.EngineOpenFlow {
		const stay = 8 // of two Services, at most
		out, err := n.Exec(ctx, "ovs-ofctl", "-O", "OpenFlow15", "dump-groups", claims.ServiceBridge)
		return max(0, strings.Count(out, "group_id=")-stay), err
	}
	out, err := northbound(ctx, n, "Load_Balancer")
	return strings.Count(out, "default/s0"), err
}

// tunnelsOf returns the number of other nodes to which a node has tunnels.
func tunnelsOf(ctx context.Context, n *lab.Node) (int, error) {
	out, err := n.Exec(ctx, "ovs-ofctl", "-O", "OpenFlow15", "--no-stats", "dump-flows", claims.TunnelBridge)
	return strings.Count(out, "tun_src="), err
}
