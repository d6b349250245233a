package agent_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/lab"
)

// podPaths returns the paths from and to a pod of node-a, which the service engine determines.
func podPaths(t *testing.T, l *lab.Lab) []path {
	t.Helper()
	find := func(node, name string) *lab.Pod {
		pods := l.Node(node).Pods()
		i := slices.IndexFunc(pods, func(p *lab.Pod) bool { return p.Name() == name })
		if i < 0 {
			t.Fatalf("%s has no pod %s", node, name)
		}
		return pods[i]
	}
	one, two, far := find("node-a", "pod-a1"), find("node-a", "pod-a2"), find("node-c", "pod-c1")
	var list []path
	add := func(name string, from lab.Place, to string, port uint16) {
		for _, protocol := range []string{"tcp", "udp"} {
			list = append(list, path{name + " " + to + " " + protocol, from, protocol,
				netip.AddrPortFrom(netip.MustParseAddr(to), port)})
		}
	}
	for i, family := range []int{4, 6} {
		add("pod → ClusterIP of its node's", two, []string{"10.96.1.1", "fd00:10:96::101"}[i], 80)
		add("pod → ClusterIP of another node's", two, []string{"10.96.1.2", "fd00:10:96::102"}[i], 80)
		add("another node's pod → ClusterIP", far, []string{"10.96.1.1", "fd00:10:96::101"}[i], 80)
		add(fmt.Sprintf("pod → pod, IPv%d", family), two, one.IPs()[i].String(), 8080)
		add(fmt.Sprintf("pod → another node's, IPv%d", family), two, far.IPs()[i].String(), 8080)
	}
	return list
}

// onServiceBridge returns the pods' ports on claims.ServiceBridge.
func onServiceBridge(t *testing.T, n *lab.Node) (list []string) {
	t.Helper()
	for port := range strings.FieldsSeq(sh(t, n, "ovs-vsctl list-ports "+claims.ServiceBridge+" 2>/dev/null || true")) {
		if strings.HasPrefix(port, claims.PodInterface) {
			list = append(list, port)
		}
	}
	return list
}

// TestServiceEngine changes the service engine of a node under traffic: pods' ports move, and no
// path fails for long. The agent may be killed at any point of the change, and each daemon while
// pods are on the other bridge.
func TestServiceEngine(t *testing.T) {
	l := startDemoIn(t, cluster.ModeShared, "[default]", "service-engine = "+cluster.EngineOVN)
	a := l.Node("node-a")
	waitServes(t, a)
	ways := append(podPaths(t, l), slices.DeleteFunc(paths(t, l),
		func(p path) bool { return !strings.Contains(p.name, " podlocal ") })...)
	pods := len(a.Pods())
	there := func(word string) {
		t.Helper()
		want := 0
		if word == cluster.EngineOpenFlow {
			want = pods
		}
		if got := onServiceBridge(t, a); len(got) != want {
			t.Errorf("with %s %d pods have their ports on %s: %v", word, len(got), claims.ServiceBridge, got)
		}
		if diff, err := ask(t.Context(), a, "/diff"); err != nil || diff != "" {
			t.Errorf("with %s: %v; differences:\n%s", word, err, diff)
		}
	}
	t.Run("altered", func(t *testing.T) { alterOurs(t, a, balancerAlterations()) })
	switches(t, a, ways, "service-engine", cluster.EngineOpenFlow)
	there(cluster.EngineOpenFlow)
	for _, name := range []string{agent, lab.Controller, lab.Northd, lab.NB} {
		t.Run("killed: "+name, func(t *testing.T) { killAlone(t, l, ways, name) })
	}
	t.Run("killed: "+lab.OVSDB, func(t *testing.T) { killSwitchDB(t, l, ways) })
	// Where an earlier connection to the endpoint had the same source port, conntrack translates
	// the port of the later one, and a restart loses that translation. The earlier ones are
	// forgotten first.
	forget := func() {
		if a.Datapath() == "netdev" {
			replaceSwitch(t, a)
			waitWell(t, a)
		}
	}
	t.Run("killed: "+lab.VSwitchd, func(t *testing.T) {
		forget()
		restartSwitch(t, l, ways, syscall.SIGKILL)
	})
	t.Run("killed: "+lab.VSwitchd+", endpoints are heard first", func(t *testing.T) {
		forget()
		endpointsFirst(t, a, ways)
	})
	there(cluster.EngineOpenFlow)
	switches(t, a, ways, "service-engine", cluster.EngineOVN)
	there(cluster.EngineOVN)
	for _, c := range []struct {
		word  string
		point string // of the change; the agent is killed there
		is    string // a command that succeeds at that point
	}{
		{cluster.EngineOpenFlow, "the bridge is made", "ovs-vsctl br-exists " + claims.ServiceBridge},
		{cluster.EngineOpenFlow, "ports have moved", "ovs-vsctl list-ports " + claims.ServiceBridge + " | grep " +
			claims.PodInterface},
		{cluster.EngineOVN, "the load balancers are there",
			"ovn-nbctl --bare --columns=load_balancer_group list Logical_Switch node-a | grep ."},
		{cluster.EngineOVN, "ports have moved", "ovs-vsctl list-ports br-int | grep " + claims.PodInterface},
	} {
		t.Run(c.word+", "+c.point, func(t *testing.T) {
			option(t, a, "service-engine",
				map[string]string{cluster.EngineOVN: cluster.EngineOpenFlow,
					cluster.EngineOpenFlow: cluster.EngineOVN}[c.word])
			waitServes(t, a)
			setting(t, a, "service-engine", c.word)
			o := underAt(t, tolerant, ways, func(f traffic) {
				f.flows(some)
				noError(t, a.Restart(t.Context(), agent, syscall.SIGTERM))
				polled(t, time.Millisecond, 20*time.Second, c.point, func() (bool, string) {
					out, err := a.Exec(t.Context(), "sh", "-c", c.is)
					return err == nil, out
				})
				noError(t, a.Restart(t.Context(), agent, syscall.SIGKILL))
				waitWell(t, a)
				f.flows(more)
			})
			t.Log(o)
			if o.failed*50 > o.opened {
				t.Errorf("new connections failed: %s", strings.Join(o.errors, "\n"))
			}
			there(c.word)
		})
	}
}

// endpointsFirst kills ovs-vswitchd while endpoints wait for a pod of its node to acknowledge what
// they sent. Their retransmissions come before any packet of the pod. The userspace datapath no
// longer knows that they are replies of a Service. The pod's connections must continue all the
// same.
func endpointsFirst(t *testing.T, n *lab.Node, ways []path) {
	var pod *lab.Pod
	ways = slices.DeleteFunc(slices.Clone(ways), func(p path) bool {
		to := p.protocol == "tcp" && strings.HasPrefix(p.name, "pod → ClusterIP")
		if to {
			pod = p.from.(*lab.Pod)
		}
		return !to
	})
	in := func(script string) string {
		t.Helper()
		out, err := pod.Exec(t.Context(), "sh", "-ec", script)
		noError(t, err)
		return out
	}
	const away = "add table inet mute; delete table inet mute; "
	rules := func(chains string) { t.Helper(); in("nft '" + away + chains + "'") }
	heard := func(what string) { // the one counter counts it
		t.Helper()
		eventually(t, patience, what, func() (bool, string) {
			now := in("nft list table inet mute")
			return strings.Contains(now, "counter packets ") && !strings.Contains(now, "counter packets 0 "), now
		})
	}
	defer rules("")
	before := mustReport(t, n).Restarts
	o := under(t, ways, func(f traffic) {
		f.flows(some)
		rules("table inet mute { chain in { type filter hook input priority 0; tcp sport 80 counter drop; }; }")
		heard("answers of Services")
		noError(t, n.Kill(t.Context(), lab.VSwitchd, syscall.SIGKILL))
		rules(`table inet mute {
			chain out { type filter hook output priority 0; tcp dport 80 drop; };
			chain in { type filter hook input priority 0; tcp sport 8080 counter; };
		}`)
		noError(t, n.Start(t.Context(), lab.VSwitchd))
		waitRestarted(t, n, before)
		if n.Datapath() == "netdev" {
			heard("what endpoints repeat")
		}
		rules("")
		f.flows(late)
	})
	t.Log(o)
	if o.broken > 0 {
		t.Errorf("%s\n%s", o, strings.Join(o.errors, "\n"))
	}
}

// TestServiceEngineAfterUpgrade changes the engine while ovn-controller starts at the same time as
// the agent, as with another value of the chart. ovn-controller changes no flows for 5 s. Pods'
// ports do not move meanwhile, so no path fails for as long.
func TestServiceEngineAfterUpgrade(t *testing.T) {
	l := startDemoIn(t, cluster.ModeShared, "[default]", "service-engine = "+cluster.EngineOVN)
	a := l.Node("node-a")
	waitServes(t, a)
	ways := append(podPaths(t, l), slices.DeleteFunc(paths(t, l),
		func(p path) bool { return !strings.Contains(p.name, " podlocal ") })...)
	for _, engine := range []string{cluster.EngineOpenFlow, cluster.EngineOVN} {
		setting(t, a, "service-engine", engine)
		o := underAt(t, tolerant, ways, func(f traffic) {
			f.flows(some)
			noError(t, a.Kill(t.Context(), agent, syscall.SIGTERM))
			noError(t, a.Restart(t.Context(), lab.Controller, syscall.SIGKILL))
			noError(t, a.Start(t.Context(), agent))
			waitServes(t, a)
			f.flows(more)
		})
		t.Logf("switched to %s: %s; %s", engine, o, strings.Join(o.gaps, ", "))
		if o.failed*50 > o.opened || o.newGap > 2*time.Second*time.Duration(*slow) {
			t.Errorf("switched to %s: new connections failed\n%s", engine, strings.Join(o.errors, "\n"))
		}
	}
}
