package demo

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hairpin/lab"
)

// patience is how long an agent may take for a step: generous, it takes a second on an idle machine.
const patience = time.Minute

// startAgents starts the agent of each node, and the controller on the first, and waits until all say that all is well.
func (d *Demo) startAgents(ctx context.Context) error {
	nodes := d.lab.Nodes()
	if !d.opt.Manifests {
		server, err := lab.OpenAPIServer(d.lab.APIServerDir())
		if err != nil {
			return err
		}
		kubeconfig, err := os.ReadFile(server.Kubeconfig())
		if err != nil {
			return fmt.Errorf("read kubeconfig: %w", err)
		}
		for _, n := range nodes {
			if err := n.WriteFile("/etc/hairpin/kubeconfig", string(kubeconfig)); err != nil {
				return err
			}
		}
		if err := nodes[0].StartDaemon(ctx, "hairpin-controller", "/usr/local/bin/hairpin", "controller", "--config-file="+agentConfig); err != nil {
			return err
		}
	}
	d.say("agents: starting")
	var starts []func() error
	for _, n := range nodes {
		starts = append(starts, func() error {
			begin := time.Now()
			if err := n.StartDaemon(ctx, "hairpin", "/usr/local/bin/hairpin", "node", "--config-file="+agentConfig); err != nil {
				return err
			}
			all := func(string) bool { return true }
			if err := n.WaitFor(ctx, patience, all, "hairpin", "status", "--config-file="+agentConfig); err != nil {
				return fmt.Errorf("%w; its log is %s", err, n.LogFile("hairpin"))
			}
			d.say("%s: the agent is ready after %.1f s", n.Name(), time.Since(begin).Seconds())
			return nil
		})
	}
	return together(starts...)
}

// addPods connects the pods, one after the other on each node, so that they get the addresses of the manifests.
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
	return together(starts...)
}

func (d *Demo) addPod(ctx context.Context, n *lab.Node, pod *corev1.Pod) error {
	begin := time.Now()
	serve := func(p *lab.Pod) error {
		_, err := lab.Serve(ctx, p, p.Name(), podPort)
		return err
	}
	var p *lab.Pod
	var err error
	if d.client != nil {
		p, err = n.RunPod(ctx, d.client, pod, serve)
	} else if p, err = n.AddPod(ctx, lab.PodConfig{Namespace: pod.Namespace, Name: pod.Name, UID: "demo-" + pod.Name}); err == nil {
		err = serve(p)
	}
	if err != nil {
		return err
	}
	d.say("%s: %s has %s after %.0f ms", n.Name(), p.Name(), words(p.IPs()), float64(time.Since(begin).Milliseconds()))
	if d.opt.Manifests {
		for _, want := range pod.Status.PodIPs {
			if !slices.Contains(p.IPs(), netip.MustParseAddr(want.IP)) {
				return fmt.Errorf("pod %s got %s, the manifests say %s", p.Name(), words(p.IPs()), want.IP)
			}
		}
	}
	return nil
}

func words(list []netip.Addr) string {
	var out []string
	for _, a := range list {
		out = append(out, a.String())
	}
	return strings.Join(out, " and ")
}

// settle waits until every node's load balancers know every ClusterIP and every pod, and their flows are installed.
func (d *Demo) settle(ctx context.Context) error {
	var wanted []string
	for _, s := range d.objects.services {
		wanted = append(wanted, s.Spec.ClusterIPs...)
	}
	for _, n := range d.lab.Nodes() {
		for _, p := range n.Pods() {
			for _, ip := range p.IPs() {
				wanted = append(wanted, ip.String())
			}
		}
	}
	var waits []func() error
	for _, n := range d.lab.Nodes() {
		waits = append(waits, func() error {
			complete := func(vips string) bool {
				return !slices.ContainsFunc(wanted, func(w string) bool { return !strings.Contains(vips, w) })
			}
			if err := n.WaitFor(ctx, patience, complete, "ovn-nbctl", "--bare", "--columns=vips", "list", "Load_Balancer"); err != nil {
				return err
			}
			_, err := n.Exec(ctx, "ovn-nbctl", "--wait=hv", "--timeout=60", "sync")
			return err
		})
	}
	if err := together(waits...); err != nil {
		return err
	}
	d.say("all Services are in the switches")
	return nil
}
