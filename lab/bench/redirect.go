package bench

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/demo"
	"hairpin/lab/probe"
)

// Of the measurement of [gateway] nodeport-path: each way in turn, so that what else the machine does meets both. The best round counts.
const (
	pathRounds = 5
	pathLong   = 2 * time.Second
)

// sinkObjects are a NodePort that takes whatever is sent.
const sinkObjects = `apiVersion: v1
kind: Service
metadata: {name: sink, namespace: default}
spec:
  type: NodePort
  clusterIPs: [10.96.9.81, "fd00:10:96::981"]
  ports: [{protocol: TCP, port: 81, nodePort: 30981}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sink-4, namespace: default, labels: {kubernetes.io/service-name: sink}}
addressType: IPv4
ports: [{protocol: TCP, port: 8981}]
endpoints: [{addresses: [10.244.1.3], nodeName: node-a}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sink-6, namespace: default, labels: {kubernetes.io/service-name: sink}}
addressType: IPv6
ports: [{protocol: TCP, port: 8981}]
endpoints: [{addresses: ["fd00:10:244:1::3"], nodeName: node-a}]
`

// redirect measures NodePorts from outside in mode detached, by nft and by the eBPF programs, in the demo's lab.
func redirect(ctx context.Context, opt Options) error {
	objects, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(objects) }()
	if err = os.CopyFS(objects, os.DirFS("examples/demo")); err == nil {
		err = os.WriteFile(filepath.Join(objects, "sink.yaml"), []byte(sinkObjects), 0o644)
	}
	if err != nil {
		return err
	}
	d, err := demo.Start(ctx, demo.Options{
		Name: opt.Name, Objects: objects, Hairpin: opt.Hairpin, Mode: cluster.ModeDetached, NodePortPath: cluster.PathNFT, Slow: opt.Slow,
		DieWithCaller: true, Out: opt.Out,
	})
	if err != nil {
		return err
	}
	defer func() { _ = lab.Remove(opt.Name) }()
	node, client := d.Lab().Node("node-a"), d.Lab().Host("client")
	pod := node.Pods()[0]
	if _, err := lab.Sink(ctx, pod, 8981); err != nil {
		return err
	}
	paths := [2]string{cluster.PathNFT, cluster.PathRedirect}
	var best [2][2]flowing // by path, by family
	for range pathRounds {
		for i, path := range paths {
			if err := usePath(ctx, node, path, opt.Slow); err != nil {
				return err
			}
			for j, a := range node.Addresses() {
				to := func(port uint16) probe.LoadConfig {
					return probe.LoadConfig{To: netip.AddrPortFrom(a.Addr(), port), Duration: pathLong * time.Duration(min(opt.Slow, 5))}
				}
				open := to(30001)
				open.Workers = 8
				opened, err := lab.Load(ctx, client, open)
				if err != nil {
					return err
				}
				sent, err := lab.Load(ctx, client, to(30981))
				if err != nil {
					return err
				}
				f := &best[i][j]
				f.connections, f.megabits = max(f.connections, float64(opened.Connections)/opened.Seconds), max(f.megabits, float64(sent.Bytes)*8e-6/sent.Seconds)
				f.failed += opened.Failed + sent.Failed
			}
		}
	}
	fmt.Fprintf(opt.Out, "\nNodePort from outside, mode detached, Open vSwitch's datapath is %s; best of %d rounds\n%-40s %10s %10s %6s %7s\n",
		node.Datapath(), pathRounds, "", "NFT", "REDIRECT", "RATIO", "FAILED")
	for j, a := range node.Addresses() {
		x, y := best[0][j], best[1][j]
		for _, r := range []struct {
			what           string
			nft, redirects float64
		}{{"TCP connections, 1/s", x.connections, y.connections}, {"one TCP stream, Mbit/s", x.megabits, y.megabits}} {
			fmt.Fprintf(opt.Out, "%-40s %10s %10s %6.2f %7d\n", cluster.FamilyOf(a.Addr()).String()+", "+r.what, number(r.nft), number(r.redirects), r.redirects/r.nft, x.failed+y.failed)
		}
	}
	return nil
}

// usePath restarts a node's agent with another [gateway] nodeport-path, and waits until it has done its work.
func usePath(ctx context.Context, n *lab.Node, path string, slow int) error {
	if _, err := n.Exec(ctx, "sed", "-i", "s/^nodeport-path = .*/nodeport-path = "+path+"/", hairpinConfig); err != nil {
		return err
	}
	if err := n.Restart(ctx, "hairpin", syscall.SIGTERM); err != nil {
		return err
	}
	well := func(out string) bool {
		return strings.Contains(out, "in sync") && !strings.Contains(out, "not in sync") && strings.Contains(out, "redirected: ") == (path == cluster.PathRedirect)
	}
	return n.WaitFor(ctx, 30*time.Second*time.Duration(slow), well, "hairpin", "status", "--config-file="+hairpinConfig)
}
