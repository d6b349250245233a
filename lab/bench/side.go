package bench

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/lab"
)

// side is one side of a comparison: a node with the program that serves its Services.
type side struct {
	name    string
	index   int // in results: 0 is ours, 1 kube-proxy
	node    *lab.Node
	program string   // the daemon of the node that serves
	args    []string // its command line
	all     []string // every daemon involved
	ready   func(context.Context) error
	addPod  func(ctx context.Context, name string) (*lab.Pod, error)
	pods    [2]*lab.Pod // servers, called pod-0 and pod-1
}

func (s *side) start(ctx context.Context) error {
	return s.node.StartDaemon(ctx, s.program, s.args...)
}

// logEnd returns the end of the program's log.
func (s *side) logEnd() string {
	const keep = 3000
	text, err := os.ReadFile(s.node.LogFile(s.program))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-keep):])
}

// addPods adds the two servers to the node.
func (s *side) addPods(ctx context.Context) error {
	for i := range s.pods {
		p, err := s.addPod(ctx, fmt.Sprintf("pod-%d", i))
		if err != nil {
			return err
		}
		if _, err := lab.Serve(ctx, p, p.Name(), inside); err != nil {
			return err
		}
		s.pods[i] = p
	}
	return nil
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

const hairpinConfig = "/etc/hairpin/hairpin.conf"

// ours returns a node with Open vSwitch and OVN, on which the agent does not run yet.
func (w *world) ours(ctx context.Context) (*side, error) {
	return w.withEngine(ctx, w.engines()[0], oursNode)
}

// second returns another such node with the other engine, if two are compared.
func (w *world) second(ctx context.Context) (*side, error) {
	if err := w.makeNode(ctx, secondNode); err != nil {
		return nil, err
	}
	s, err := w.withEngine(ctx, w.engines()[1], secondNode)
	if s != nil {
		s.index = 2
	}
	return s, err
}

// engines returns the service engines of Hairpin's nodes; empty is the default.
func (w *world) engines() []string { return strings.Split(w.opt.Engine, ",") }

func (w *world) withEngine(ctx context.Context, engine string, number int) (*side, error) {
	binary, err := w.hairpinBinary()
	if err != nil {
		return nil, err
	}
	access, err := os.ReadFile(w.runs.Kubeconfig())
	if err != nil {
		return nil, err
	}
	name, text := "Hairpin", "[kubernetes]\nkubeconfig = /etc/hairpin/kubeconfig\n"
	if engine != "" {
		name += ", " + engine
		text += "[default]\nservice-engine = " + engine + "\n"
	}
	node, err := w.lab.StartNode(ctx, lab.NodeConfig{
		Name: nodeNames[number], Addresses: nodeAddresses(number),
		Binds: map[string]string{"/usr/local/bin/hairpin": binary, "/opt/cni/bin/hairpin": binary},
		Files: map[string]string{
			hairpinConfig:                text,
			"/etc/hairpin/kubeconfig":    string(access),
			"/etc/cni/net.d/10.conflist": `{"cniVersion": "1.1.0", "name": "hairpin", "plugins": [{"type": "hairpin"}]}`,
		},
	})
	if err != nil {
		return nil, err
	}
	s := &side{name: name, node: node, program: "hairpin",
		args: []string{"hairpin", "node", "--config-file=" + hairpinConfig},
		all:  append([]string{"hairpin"}, lab.AllDaemons()...)}
	s.ready = func(ctx context.Context) error {
		all := func(string) bool { return true }
		return node.WaitFor(ctx, w.patience(3*time.Second), all, "hairpin", "probe", "readyz", "--config-file="+
			hairpinConfig)
	}
	s.addPod = func(ctx context.Context, name string) (*lab.Pod, error) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			Spec: corev1.PodSpec{NodeName: node.Name(),
				Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}
		now := int64(0)
		pods := w.client.CoreV1().Pods(namespace)
		_ = pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now}) // of the previous node
		made, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("create Pod %s: %w", name, err)
		}
		return node.RunPod(ctx, w.client, made, nil)
	}
	return s, nil
}

const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: node-k
detectLocalMode: ClusterCIDR
clusterCIDR: 10.244.0.0/16,fd00:10:244::/48
clientConnection: {kubeconfig: /etc/peer/kubeconfig, qps: -1}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// vethPlugin is a CNI plugin that gives a pod an address and a veth pair to its host, which routes.
// It is the shortest possible path.
const vethPlugin = `#!/bin/sh
set -e
[ "$CNI_COMMAND" = ADD ] || exit 0
last=1; [ ! -e /run/last ] || last=$(cat /run/last)
n=$((last + 1)); echo $n >/run/last
ns=${CNI_NETNS##*/}
ip link add veth$n type veth peer name eth0 netns $ns
ip link set veth$n up
echo 1 >/proc/sys/net/ipv4/conf/veth$n/proxy_arp
ip route add 10.244.2.$n dev veth$n
ip -n $ns addr add 10.244.2.$n/32 dev eth0
ip -n $ns link set eth0 up
ip -n $ns route add 169.254.1.1 dev eth0
ip -n $ns route add default via 169.254.1.1
echo '{"cniVersion":"1.1.0","ips":[{"address":"10.244.2.'$n'/32"}]}'
`

// theirs returns a node with routed pods, on which kube-proxy does not run yet.
func (w *world) theirs(ctx context.Context) (*side, error) {
	s, err := w.routed(ctx, "kube-proxy", w.kube, map[string]string{"/etc/peer/config": proxyConfig},
		"--config=/etc/peer/config")
	if err != nil {
		return s, err
	}
	s.ready = func(ctx context.Context) error {
		all := func(string) bool { return true }
		return s.node.WaitFor(ctx, w.patience(3*time.Second), all, "nft", "list", "chain", "ip", "kube-proxy",
			"services")
	}
	s.addPod = func(ctx context.Context, name string) (*lab.Pod, error) {
		return s.node.AddPod(ctx, lab.PodConfig{Namespace: namespace, Name: name, UID: name})
	}
	return s, nil
}

// router returns a node with routed pods, on which kube-router, which would enforce NetworkPolicies
// and do nothing else, does not run yet.
func (w *world) router(ctx context.Context) (*side, error) {
	binary, err := filepath.Abs(w.opt.KubeRouter)
	if err != nil {
		return nil, err
	}
	s, err := w.routed(ctx, "kube-router", binary, nil, "--kubeconfig=/etc/peer/kubeconfig", "--run-router=false",
		"--run-service-proxy=false", "--run-firewall=true", "--run-loadbalancer=false",
		"--hostname-override="+nodeNames[theirsNode], "--service-cluster-ip-range=10.96.0.0/16", "--v=0")
	if err != nil {
		return s, err
	}
	s.ready = func(ctx context.Context) error {
		all := func(string) bool { return true }
		return s.node.WaitFor(ctx, w.patience(10*time.Second), all, "iptables", "-S", "KUBE-ROUTER-FORWARD")
	}
	return s, nil
}

// routed returns a node with routed pods for a peer's program, which does not run yet.
func (w *world) routed(ctx context.Context, program, binary string, files map[string]string,
	args ...string) (*side, error) {
	access, err := os.ReadFile(w.runs.Kubeconfig())
	if err != nil {
		return nil, err
	}
	all := map[string]string{
		"/etc/peer/kubeconfig":       string(access),
		"/opt/cni/bin/veth":          vethPlugin,
		"/etc/cni/net.d/10.conflist": `{"cniVersion": "1.1.0", "name": "veth", "plugins": [{"type": "veth"}]}`,
	}
	maps.Copy(all, files)
	node, err := w.lab.StartNode(ctx, lab.NodeConfig{
		Name: nodeNames[theirsNode], Addresses: nodeAddresses(theirsNode), Plain: true,
		Binds: map[string]string{"/usr/local/bin/" + program: binary}, Files: all,
	})
	if err != nil {
		return nil, err
	}
	s := &side{name: program, index: 1, node: node, program: program, args: append([]string{program}, args...),
		all: []string{program}}
	for _, c := range []string{"chmod +x /opt/cni/bin/veth",
		"sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"} {
		if _, err := node.Exec(ctx, "sh", "-c", c); err != nil {
			return s, err
		}
	}
	return s, nil
}
