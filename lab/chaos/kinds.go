package chaos

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"text/tabwriter"
	"time"
)

// scope is where a kind of fault can be injected.
type scope int

const (
	onNode         scope = iota // any node
	onWorker                    // a node without the control plane
	onPair                      // between two nodes
	onControlPlane              // etcd, API server, controller manager and scheduler
)

// wholeNode is the part of faults in which every program of a node fails.
const wholeNode = "node"

// upgrade is the kind of fault that needs another image.
const upgrade = "upgrade and back"

// undo ends a fault, and returns when what failed runs again.
type undo func(context.Context) error

// kind is a kind of fault.
type kind struct {
	name        string
	about       string // what it does
	where       scope
	part        string        // what fails; each part of a node has one fault at a time
	least, most time.Duration // how long it lasts
	weight      int           // how often it is drawn
	breaks      bool          // connections through the node, or between the two, may fail
	dead        bool          // peers detect the node as dead
	shares      bool          // two nodes may answer for an address during the fault
	reported    bool          // hairpin status must name the node
	noAPI       bool          // the node's kubelet does not reach the API server
	startsAgent bool          // the node gets another agent, which repairs nothing before it knows the cluster
	// grace is how long connections may fail after the end.
	grace time.Duration
	// brief, if not 0, is how long they may fail after the start.
	brief  time.Duration
	inject func(context.Context, *run, Fault) (undo, error)
}

// kinds has all kinds of faults. It is set in init because injections refer to it.
var kinds = map[string]*kind{}

// kindNames has the names of kinds in the order of PrintKinds.
var kindNames []string

func add(k kind) {
	kinds[k.name] = &k
	kindNames = append(kindNames, k.name)
}

// daemons are the programs of a node in pods, with a regular expression for their command lines.
// The kubelet restarts them.
var daemons = []struct {
	name, pattern string
	forwards      bool // the node's packets pass it
	decides       bool // without it, the node keeps addresses that it should not have any more
	watched       bool // the agent or peers detect that it hangs, while nothing changes
}{
	{"agent", "^hairpin node", false, true, true},
	{"controller", "^hairpin controller", false, false, false},
	{"ovsdb-server", "^ovsdb-server .*/conf.db", false, true, true},
	{"ovs-vswitchd", "^ovs-vswitchd", true, false, true},
	{"OVN northbound database", "^ovsdb-server .*/ovnnb_db.db", false, false, true},
	{"OVN southbound database", "^ovsdb-server .*/ovnsb_db.db", false, false, true},
	{"ovn-northd", "^ovn-northd", false, false, true},
	{"ovn-controller", "^ovn-controller", false, false, true},
}

// PrintKinds writes a line for each kind of fault.
func PrintKinds(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "FAULT\tLASTS\tCONNECTIONS MAY FAIL\tWHAT IT DOES")
	for _, name := range kindNames {
		k := kinds[name]
		fails := "no"
		if k.breaks {
			fails = fmt.Sprintf("until %s after its end", k.grace)
		}
		if k.brief > 0 {
			fails = fmt.Sprintf("for %s, and %s", k.brief, fails)
		}
		fmt.Fprintf(t, "%s\t%s to %s\t%s\t%s\n", name, k.least, k.most, fails, k.about)
	}
	_ = t.Flush() // an error cannot be reported
}

const second = time.Second

func init() {
	for _, d := range daemons {
		grace := time.Duration(0)
		if d.forwards {
			grace = 5 * second
		}
		add(kind{name: d.name + " killed", about: "SIGKILL", part: d.name, weight: 2, breaks: d.forwards, grace: grace,
			shares: d.decides, startsAgent: d.name == "agent", inject: killDaemon(d.pattern)})
		add(kind{name: d.name + " stopped", about: "SIGSTOP, then SIGCONT", part: d.name, least: 3 * second,
			most: 20 * second, weight: 1, breaks: d.forwards, dead: d.forwards, noAPI: d.forwards, grace: grace,
			shares: d.decides, reported: d.watched,
			inject: stopDaemon(d.pattern)})
	}
	// It needs ovsdb-server to start, so both count as one part.
	const connects = "^/usr/bin/perl .*/connect-database"
	add(kind{name: "connect-database killed", about: "SIGKILL", part: "ovsdb-server", weight: 2,
		inject: killDaemon(connects)})
	add(kind{name: "connect-database stopped", about: "SIGSTOP, then SIGCONT", part: "ovsdb-server", least: 3 * second,
		most: 20 * second, weight: 1, inject: stopDaemon(connects)})
	for _, name := range []string{"kubelet", "containerd"} {
		add(kind{name: name + " killed", about: "SIGKILL; started again at the end", part: name, least: second,
			most: 15 * second, weight: 1, noAPI: true, inject: killAndStart(name)})
		add(kind{name: name + " stopped", about: "SIGSTOP, then SIGCONT", part: name, least: 3 * second,
			most: 15 * second, weight: 1, noAPI: true, inject: stopDaemon("^" + name + "( |$)")})
	}
	add(kind{name: "control plane killed", about: "SIGKILL; started again at the end", where: onControlPlane,
		part: "control plane", least: second, most: 15 * second, weight: 2, noAPI: true, inject: killControlPlane})
	add(kind{name: "control plane stopped", about: "SIGSTOP, then SIGCONT", where: onControlPlane,
		part: "control plane", least: 3 * second, most: 15 * second, weight: 1, noAPI: true, inject: stopControlPlane})
	add(kind{name: "control plane slow", about: "it is stopped for 1 to 5 s at a time, with 300 ms between",
		where: onControlPlane, part: "control plane", least: 5 * second, most: 15 * second, weight: 1, noAPI: true,
		inject: slowControlPlane})
	add(kind{name: "agents rolled out", about: "`kubectl rollout restart`, and the wait for it", where: onControlPlane,
		part: "rollout", least: second, most: second, weight: 1, shares: true, startsAgent: true,
		inject: restartAgents})
	add(kind{name: "Open vSwitch's pod deleted", about: "`kubectl delete pod`, and the wait for the next one",
		part: "ovs-vswitchd", least: second, most: second, weight: 1, breaks: true, grace: 5 * second,
		inject: deleteOpenvSwitch})
	add(kind{name: upgrade, about: "`helm upgrade` to another build of the image, and back",
		where: onControlPlane, part: "control plane", least: 120 * second, most: 120 * second, weight: 1,
		shares: true, startsAgent: true, inject: upgradeAndBack})
	add(kind{name: "token key replaced", about: "the API server signs service account tokens with another key, kubelets " +
		"write new ones, and it rejects the old ones", where: onControlPlane, part: "control plane", least: 60 * second,
		most: 60 * second, weight: 1, noAPI: true, inject: replaceTokenKey})
	add(kind{name: "CA replaced", about: "pods get another CA; minutes later only that one signs, and is trusted",
		where: onControlPlane, part: "control plane", least: reloadCA, most: reloadCA, weight: 1, noAPI: true,
		inject: replaceCA})
	add(kind{name: "more nodes", about: fmt.Sprintf("simulated nodes join until there are %d, and leave", allNodes),
		where: onControlPlane, part: "nodes", least: 10 * second, most: 40 * second, weight: 1, inject: addNodes})
	addChanges()
	addFullDisks()
	addNetworkFaults()
	addRouterFaults()
	add(kind{name: "node paused", about: "SIGSTOP of every process of the node, then SIGCONT", part: wholeNode,
		least: 3 * second, most: 70 * second, weight: 2, breaks: true, dead: true, reported: true, noAPI: true,
		grace: 5 * second, inject: pauseNode})
	add(kind{name: "node rebooted", about: "every process of the node is killed, and it boots again",
		where: onWorker, part: wholeNode, least: 40 * second, most: 40 * second, weight: 1, breaks: true, dead: true,
		noAPI: true, startsAgent: true, grace: 5 * second, inject: rebootNode})
}

// addChanges adds faults that change or remove what the agent has written to a node.
func addChanges() {
	const atOnce = 100 * time.Millisecond
	change := func(name, about, daemon string, grace time.Duration, command ...string) {
		add(kind{name: name, about: about, part: name, least: atOnce, most: atOnce, weight: 1, breaks: true,
			grace: grace, inject: runCommand(daemon, command)})
	}
	const vswitchd, controller = "^ovs-vswitchd", "^ovn-controller"
	change("nft ruleset flushed", "`nft flush ruleset`", "", 5*second, "nft", "flush", "ruleset")
	change("flows of br-int deleted", "`ovs-ofctl del-flows br-int`", vswitchd, 10*second, "ovs-ofctl", "del-flows",
		"br-int")
	change("flows of br-ex deleted", "`ovs-ofctl del-flows br-ex`", vswitchd, 5*second,
		"ovs-ofctl", "del-flows", "br-ex")
	change("addresses of ovn-k8s-mp0 deleted", "`ip address flush dev ovn-k8s-mp0`", "", 5*second,
		"ip", "address", "flush", "dev", "ovn-k8s-mp0")
	change("ovn-k8s-mp0 set down", "`ip link set ovn-k8s-mp0 down`", "", 5*second, "ip", "link", "set", "ovn-k8s-mp0",
		"down")
	change("port ovn-k8s-mp0 deleted", "`ovs-vsctl del-port ovn-k8s-mp0`", vswitchd, 10*second,
		"ovs-vsctl", "--no-wait", "del-port", "ovn-k8s-mp0")
	change("br-svc deleted", "`ovs-vsctl del-br br-svc`", vswitchd, 10*second,
		"ovs-vsctl", "--no-wait", "del-br", "br-svc")
	change("br-tun deleted", "`ovs-vsctl del-br br-tun`", vswitchd, 10*second,
		"ovs-vsctl", "--no-wait", "del-br", "br-tun")
	change("routes to Services deleted", "`ip route flush dev svc-host`, for both families", "", 5*second,
		"sh", "-c", "ip -4 route flush dev svc-host; ip -6 route flush dev svc-host")
	change("routes of ovn-k8s-mp0 deleted", "`ip route flush dev ovn-k8s-mp0`, for both families", "", 5*second,
		"sh", "-c", "ip -4 route flush dev ovn-k8s-mp0; ip -6 route flush dev ovn-k8s-mp0")
	change("OVN routes deleted", "`ovn-nbctl clear Logical_Router ovn_cluster_router static_routes policies`", controller,
		5*second, "ovn-nbctl", "clear", "Logical_Router", "ovn_cluster_router", "static_routes", "policies")
	change("OVN gateway router deleted", "`ovn-nbctl lr-del GR_…`", controller, 10*second, "sh", "-c",
		"for r in $(ovn-nbctl --bare --columns=name find Logical_Router | grep ^GR_); do ovn-nbctl lr-del $r; done")
	change("OVN node switch deleted", "`ovn-nbctl ls-del` of the switch with the node's ports", controller, 10*second,
		"sh", "-c", "for s in $(ovn-nbctl --bare --columns=name find Logical_Switch | grep ^node-); do "+
			"ovn-nbctl ls-del $s; done")
	for _, table := range []string{"Logical_Flow", "Multicast_Group"} {
		command := []string{"ovn-sbctl", "--all", "destroy", table}
		change("OVN "+table+" rows deleted", "`"+strings.Join(command, " ")+"`", controller, 10*second, command...)
	}
}

// addFullDisks adds faults in which the disk of a database is full.
func addFullDisks() {
	for _, d := range []struct {
		name, daemon, dir string
		decides           bool
	}{
		{"disk of OVN full", "^ovsdb-server .*/ovn[ns]b_db.db", "/var/lib/ovn", false},
		{"disk of Open vSwitch full", "^ovsdb-server .*/conf.db", "/etc/openvswitch", true},
	} {
		add(kind{name: d.name, about: "no byte is free in " + d.dir + ", which ovsdb-server opens again",
			part: d.name, least: 5 * second, most: 30 * second, weight: 1, shares: d.decides,
			inject: fillDisk(d.daemon, d.dir)})
	}
}

// addRouterFaults adds changes of what the router of the external network advertises, and of the
// addresses that a DHCP server assigns.
func addRouterFaults() {
	const least, most = 3 * second, 20 * second
	add(kind{name: "another prefix", about: "a router advertises a prefix and itself, and withdraws both",
		part: "address", least: least, most: most, weight: 1, inject: advertisePrefix})
	add(kind{name: "no default route", about: "a router withdraws the node's only IPv6 default route, and comes back",
		part: "address", least: least, most: most, weight: 1, inject: withdrawDefaultRoute})
	add(kind{name: "another InternalIP", about: "the machine's addresses are replaced by others of its network, which " +
		"the kubelet reports, and come back", where: onWorker, part: "address", least: 40 * second, most: 60 * second,
		weight: 1, breaks: true, noAPI: true, brief: 25 * second, grace: 25 * second, inject: replaceAddresses})
}

// addNetworkFaults adds faults of the network between nodes.
func addNetworkFaults() {
	const least, most = 3 * second, 20 * second
	add(kind{name: "partition", about: "no packet passes between two nodes", where: onPair, part: "network",
		least: least, most: most, weight: 2, breaks: true, shares: true, noAPI: true, grace: 5 * second,
		inject: dropBetween(true)})
	add(kind{name: "one-way loss", about: "no packet passes from one node to another", where: onPair, part: "network",
		least: least, most: most, weight: 1, breaks: true, shares: true, noAPI: true, grace: 5 * second,
		inject: dropBetween(false)})
	add(kind{name: "no API", about: "packets between a node and the API server are dropped", where: onWorker,
		part: "network", least: least, most: most, weight: 2, noAPI: true, inject: dropAPI})
	add(kind{name: "loss of 20 %", about: "one in five packets to and from a node is dropped", part: "network",
		least: least,
		most:  most, weight: 1, breaks: true, noAPI: true, grace: 5 * second, inject: dropSome})
	add(kind{name: "duplicated frames", about: "one in three frames from a node to another arrives twice",
		part: "network", least: least, most: most, weight: 1, inject: duplicateFrames})
	add(kind{name: "delay of 200 ms", about: "frames from a node arrive 200 ms later", part: "network", least: least,
		most: most, weight: 1, inject: delayFrames(func(*rand.Rand) time.Duration { return 200 * time.Millisecond })})
	add(kind{name: "reordered frames", about: "one in four frames from a node arrives up to 20 ms later",
		part: "network", least: least, most: most, weight: 1,
		inject: delayFrames(func(r *rand.Rand) time.Duration {
			return max(0, time.Duration(r.Int64N(80)-60)*time.Millisecond)
		})})
	add(kind{name: "uplink MTU 1400", about: "the uplink's MTU is 1400 in place of 1500", part: "MTU", least: least,
		most: most, weight: 1, breaks: true, grace: 5 * second, inject: lowerMTU})
	add(kind{name: "another address", about: "the machine gets another address of its network, and loses it",
		part: "address", least: least, most: most, weight: 1, inject: addAddresses})
	add(kind{name: "uplink down", about: "the node's uplink has no carrier", part: "network", least: least, most: most,
		weight: 2, breaks: true, dead: true, reported: true, noAPI: true, grace: 5 * second, inject: setUplinkDown})
}
