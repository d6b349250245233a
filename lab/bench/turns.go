package bench

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/demo"
	"hairpin/lab/probe"
)

// Rounds of a measurement in turn, in which other load of the machine affects all values.
const (
	turnRounds     = 5
	turnRoundsSlow = 3 // on a slow machine, where a restart of the agent takes a minute
	turnLong       = 2 * time.Second
)

// setting has two values, which are measured in turn in the demo's lab.
type setting struct {
	title, key string
	values     [2]string
	demo       demo.Options
	// set makes a value the node's; nil: key is one of the configuration.
	set func(ctx context.Context, n *lab.Node, value string) error
	// shows is a command of the node, from whose output value reads the active value.
	shows []string
	value func(out string) string
	ways  func(n *lab.Node, client *lab.Host) []turnWay
}

// turnWay is a path to a server, and to a sink that discards all data.
type turnWay struct {
	name        string
	from        lab.Place
	serve, sink netip.AddrPort // no sink: only connections are measured
}

// turn holds the results of one value on one path.
type turn struct {
	carried
	cpu []float64 // µs per connection
}

func statusCommand() []string { return []string{"hairpin", "status", "--config-file=" + hairpinConfig} }

// pathSetting compares external traffic to Services in mode detached, by nft and by the eBPF
// programs.
func pathSetting() setting {
	at := netip.MustParseAddrPort
	return setting{
		title: "outside → Service → pod, mode detached", key: "nodeport-path",
		values: [2]string{cluster.PathNFT, cluster.PathRedirect},
		demo:   demo.Options{Mode: cluster.ModeDetached, NodePortPath: cluster.PathNFT},
		shows:  statusCommand(),
		value: func(out string) string {
			if strings.Contains(out, "redirected: ") {
				return cluster.PathRedirect
			}
			return cluster.PathNFT
		},
		ways: func(n *lab.Node, client *lab.Host) (list []turnWay) {
			for _, a := range n.Addresses() {
				list = append(list, turnWay{"NodePort, " + cluster.FamilyOf(a.Addr()).String(), client,
					netip.AddrPortFrom(a.Addr(), 30001), netip.AddrPortFrom(a.Addr(), 30981)})
			}
			return append(list,
				turnWay{"external, IPv4", client, at("203.0.113.10:80"), at("203.0.113.81:81")},
				turnWay{"external, IPv6", client, at("[2001:db8:113::10]:80"), at("[2001:db8:113::81]:81")},
				turnWay{"balancer, IPv4", client, at("203.0.113.20:80"), netip.AddrPort{}},
				turnWay{"balancer, IPv6", client, at("[2001:db8:113::20]:80"), netip.AddrPort{}})
		},
	}
}

// localSetting compares the traffic of a node's host to Services, by policies and by a distributed
// gateway port.
func localSetting() setting {
	at := netip.MustParseAddrPort
	return setting{
		title: "host → ClusterIP, mode shared", key: "node-local",
		values: [2]string{cluster.LocalPolicy, cluster.LocalDGP},
		demo:   demo.Options{Mode: cluster.ModeShared, NodeLocal: cluster.LocalPolicy, Engine: cluster.EngineOVN},
		shows:  []string{"ip", "route", "get", "10.96.1.1"},
		value: func(out string) string {
			if strings.Contains(out, " dev ovn-k8s-mp0 ") {
				return cluster.LocalDGP
			}
			return cluster.LocalPolicy
		},
		ways: func(n *lab.Node, _ *lab.Host) []turnWay {
			return []turnWay{
				{"own host, IPv4", n.Host, at("10.96.1.3:80"), netip.AddrPort{}},
				{"own host, IPv6", n.Host, at("[fd00:10:96::103]:80"), netip.AddrPort{}},
				{"pod, IPv4", n.Host, at("10.96.1.1:80"), at("10.96.9.81:81")},
				{"pod, IPv6", n.Host, at("[fd00:10:96::101]:80"), at("[fd00:10:96::981]:81")},
			}
		},
	}
}

// trafficPolicies is how many NetworkPolicies the namespace of the pods has while traffic beside
// them is measured.
const trafficPolicies = 1000

// trafficPolicyObjects returns the policies. Every tenth selects the server, and one of these
// allows the clients.
func trafficPolicyObjects() (string, error) {
	var out strings.Builder
	for i := range trafficPolicies {
		p := policyFor(fmt.Sprintf("traffic-%04d", i), appName(i), 80, appName(3*i), appName(3*i+1), appName(3*i+2))
		if i%10 == 0 {
			p.Spec.PodSelector.MatchLabels["app"] = "web"
		}
		if i == 0 {
			p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
				{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
				{IPBlock: &networkingv1.IPBlock{CIDR: "172.16.0.0/12"}}, // as seen from outside, and the node
				{IPBlock: &networkingv1.IPBlock{CIDR: "100.64.0.0/16"}}}}}
		}
		p.TypeMeta = metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}
		p.Namespace = "default"
		text, err := yaml.Marshal(p)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "---\n%s", text)
	}
	return out.String(), nil
}

// policySetting compares traffic that NetworkPolicies allow to traffic without policies.
func policySetting() setting {
	at := netip.MustParseAddrPort
	return setting{
		title: "allowed by NetworkPolicies, mode shared", key: "policies",
		values: [2]string{"none", strconv.Itoa(trafficPolicies)},
		demo:   demo.Options{Mode: cluster.ModeShared},
		set: func(_ context.Context, n *lab.Node, value string) (err error) {
			var objects string
			if value != "none" {
				objects, err = trafficPolicyObjects()
			}
			if err != nil {
				return err
			}
			return demo.SetManifest(n.Lab(), "traffic-policies.yaml", objects)
		},
		shows: []string{"hairpin", "policies", "default/pod-a1", "--config-file=" + hairpinConfig},
		value: func(out string) string {
			if strings.Contains(out, "NetworkPolicy/default/") {
				return strconv.Itoa(trafficPolicies)
			}
			return "none"
		},
		ways: func(n *lab.Node, client *lab.Host) []turnWay {
			pod := n.Pods()[1]
			return []turnWay{
				{"pod → pod, IPv4", pod, at("10.244.1.3:8080"), at("10.244.1.3:8981")},
				{"pod → pod, IPv6", pod, at("[fd00:10:244:1::3]:8080"), at("[fd00:10:244:1::3]:8981")},
				{"pod → ClusterIP → pod, IPv4", pod, at("10.96.1.1:80"), at("10.96.9.81:81")},
				{"outside → NodePort → pod, IPv4", client, netip.AddrPortFrom(n.Addresses()[0].Addr(), 30001),
					netip.AddrPortFrom(n.Addresses()[0].Addr(), 30981)},
			}
		},
	}
}

// sinkObjects are a NodePort and external addresses of a sink, which discards all data.
const sinkObjects = `apiVersion: v1
kind: Service
metadata: {name: sink, namespace: default}
spec:
  type: NodePort
  clusterIPs: [10.96.9.81, "fd00:10:96::981"]
  externalIPs: [203.0.113.81, "2001:db8:113::81"]
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

// inTurn measures a setting and prints its table.
func inTurn(ctx context.Context, opt Options, s setting) error {
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
	s.demo.Name, s.demo.Objects, s.demo.Hairpin, s.demo.Slow, s.demo.DieWithCaller, s.demo.Out = opt.Name, objects,
		opt.Hairpin, opt.Slow, true, opt.Out
	s.demo.OVS, s.demo.TSO, s.demo.Engine = opt.OVS, opt.TSO, cmp.Or(s.demo.Engine, opt.Engine)
	d, err := demo.Start(ctx, s.demo)
	if err != nil {
		return err
	}
	defer func() { _ = lab.Remove(opt.Name) }()
	node := d.Lab().Node("node-a")
	if _, err := lab.Sink(ctx, node.Pods()[0], 8981); err != nil {
		return err
	}
	ways := s.ways(node, d.Lab().Host("client"))
	turns := [2][]turn{make([]turn, len(ways)), make([]turn, len(ways))}
	rounds := turnRounds
	if opt.Slow > 1 {
		rounds = turnRoundsSlow
	}
	for range rounds {
		for i, value := range s.values {
			if err := s.use(ctx, node, value, opt.Slow); err != nil {
				return err
			}
			for j, way := range ways {
				if err := turns[i][j].measure(ctx, node, way, opt.Slow); err != nil {
					return fmt.Errorf("%s %s, %s: %w", s.key, value, way.name, err)
				}
			}
		}
	}
	fmt.Fprintf(opt.Out,
		"\n%s, Open vSwitch's datapath is %s; %d rounds: the median (worst), and of the ratios of each\n%-38s "+
			"%16s %16s %6s %7s\n",
		s.title, node.Datapath(), rounds, "", strings.ToUpper(s.values[0]), strings.ToUpper(s.values[1]), "RATIO",
		"FAILED")
	for j, way := range ways {
		x, y := turns[0][j], turns[1][j]
		line := func(what string, worst func([]float64) float64, x, y []float64, failed int) {
			fmt.Fprintf(opt.Out, "%-38s %16s %16s %6.2f %7d\n", way.name+", "+what, told(x, worst), told(y, worst),
				ratio(y, x), failed)
		}
		line("TCP connections, 1/s", slices.Min, x.connections, y.connections, x.failed+y.failed)
		line("CPU of one, µs", slices.Max, x.cpu, y.cpu, 0)
		if way.sink.IsValid() {
			line("one TCP stream, Mbit/s", slices.Min, x.megabits, y.megabits, 0)
		}
	}
	return nil
}

// measure runs one round.
func (t *turn) measure(ctx context.Context, n *lab.Node, y turnWay, slow int) error {
	long := turnLong * time.Duration(min(slow, 5))
	// Remaining work after the agent's restart, and missing flows of the datapath, are not
	// measured.
	if _, err := lab.Load(ctx, y.from, probe.LoadConfig{To: y.serve, Workers: 8, Duration: long / 2}); err != nil {
		return err
	}
	before, err := n.Spent()
	if err != nil {
		return err
	}
	opened, err := t.connect(ctx, y.from, y.serve, long)
	if err != nil {
		return err
	}
	after, err := n.Spent()
	if err != nil {
		return err
	}
	if opened.Connections == 0 {
		return fmt.Errorf("no connection to %s: %s", y.serve, opened.Error)
	}
	cpu := opened.CPU + (after - before).Seconds()
	t.cpu = append(t.cpu, cpu*1e6/float64(opened.Connections))
	if !y.sink.IsValid() {
		return nil
	}
	return t.stream(ctx, y.from, y.sink, long)
}

// restart writes another value of the setting's key and restarts the node's agent.
func (s *setting) restart(ctx context.Context, n *lab.Node, value string) error {
	if _, err := n.Exec(ctx, "sed", "-i", "s/^"+s.key+" = .*/"+s.key+" = "+value+"/", hairpinConfig); err != nil {
		return err
	}
	return n.Restart(ctx, "hairpin", syscall.SIGTERM)
}

// use makes a value of the setting the node's, and waits until its agent is in sync.
func (s *setting) use(ctx context.Context, n *lab.Node, value string, slow int) error {
	set := s.set
	if set == nil {
		set = s.restart
	}
	if err := set(ctx, n, value); err != nil {
		return err
	}
	patience := 30 * time.Second * time.Duration(slow)
	well := func(string) bool { return true } // exit code 0 says so
	shown := func(out string) bool { return s.value(out) == value }
	if err := n.WaitFor(ctx, patience, shown, s.shows...); err != nil {
		return err
	}
	return n.WaitFor(ctx, patience, well, statusCommand()...)
}
