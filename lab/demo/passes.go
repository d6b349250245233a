package demo

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/walk"
	"hairpin/walk/packet"
)

// Passed is the cost of a path's packets: as the walk predicts, and as counted under traffic.
type Passed struct {
	Way           string
	Walk, Counted walk.Costs
}

// passing returns the paths whose passes are counted. Each has one endpoint, so that the walk can
// predict it.
func passing() []struct {
	name string
	Case
} {
	return []struct {
		name string
		Case
	}{
		{"pod → pod, same node", Case{From: "pod-a2", To: "pod-a1", Path: "direct"}},
		{"pod → pod, other node", Case{From: "pod-a2", To: "pod-c1", Path: "direct"}},
		{"pod → ClusterIP, endpoint on the same node", Case{From: "pod-a2", To: "podlocal", Path: "ClusterIP"}},
		{"pod → ClusterIP, endpoint on another node", Case{From: "pod-a2", To: "podremote", Path: "ClusterIP"}},
		{"host → ClusterIP, endpoint on the same node", Case{From: "host-a", To: "podlocal", Path: "ClusterIP"}},
		{"host → ClusterIP, endpoint on another node", Case{From: "host-a", To: "podremote", Path: "ClusterIP"}},
		{"outside → NodePort, endpoint on the same node",
			Case{From: clientName, To: "podlocal", Path: "NodePort node-a"}},
		{"outside → NodePort, endpoint on another node",
			Case{From: clientName, To: "podremote", Path: "NodePort node-a"}},
		{"pod → outside", Case{From: "pod-a2", To: clientName, Path: "direct"}},
	}
}

// Passes sends UDP on each path, over IPv4 or IPv6. It counts conntrack passes and datapath lookups
// on all nodes, in the megaflows' packet counters and in an nft table beside the hosts' conntrack.
// No other program should send UDP meanwhile.
func (d *Demo) Passes(ctx context.Context, six bool) ([]Passed, error) {
	o, err := d.source.read(ctx)
	if err != nil {
		return nil, err
	}
	w, err := newWorld(ctx, d.lab, o)
	if err != nil {
		return nil, err
	}
	world, err := d.found(ctx)
	if err != nil {
		return nil, err
	}
	walker, f := walk.New(world), families()[0]
	if six {
		f = families()[1]
	}
	c := &counting{d: d}
	if err := c.everywhere(func(n *lab.Node) error { return notes(ctx, n) }); err != nil {
		return nil, err
	}
	if err := c.everywhere(func(n *lab.Node) error { return c.countHost(ctx, n) }); err != nil {
		return nil, err
	}
	defer func() {
		_ = c.everywhere(func(n *lab.Node) error {
			_, err := n.Exec(context.WithoutCancel(ctx), "nft", "delete", "table", "inet", hostCounter)
			return err
		})
	}()
	var list []Passed
	for _, x := range passing() {
		to, err := w.target(x.Case, f)
		if err != nil {
			return nil, err
		}
		from, p := w.point(world.Snapshot, x.From),
			packet.Packet{Protocol: cluster.UDP, Dst: to.Addr(), DstPort: to.Port()}
		if from == (walk.Point{}) {
			p.Src = w.endpoints[x.From].address(f)
		}
		t, err := walker.WalkWithLater(from, p)
		if err == nil && !t.Verdict.Answered {
			err = fmt.Errorf("no answer: %s", t.Verdict.Reason)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", x.name, err)
		}
		counted, err := c.costs(ctx, w.endpoints[x.From].place, to, t.Costs)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", x.name, err)
		}
		list = append(list, Passed{x.name, t.Costs, counted})
	}
	return list, nil
}

// counting counts on all nodes of a demo.
type counting struct{ d *Demo }

const (
	hostCounter = "lab_passes" // an nft table
	packets     = 200          // of each kind
	// tolerance of a count per packet, for packets that waited for their megaflow and others
	least = 0.2
)

func (c *counting) everywhere(do func(n *lab.Node) error) error {
	var all []func() error
	for _, n := range c.d.lab.Nodes() {
		all = append(all, func() error { return do(n) })
	}
	return lab.Together(all...)
}

// notes waits until a node records all new connections. Userspace Open vSwitch does not in its
// first ten seconds (svcbridge.RestartFlows).
func notes(ctx context.Context, n *lab.Node) error {
	const bridge = claims.ServiceBridge
	done := func(flows string) bool { return !strings.Contains(flows, "hard_timeout=") }
	return n.WaitFor(ctx, 20*time.Second, done, "sh", "-c", "! ovs-vsctl br-exists "+bridge+" || ovs-ofctl dump-flows "+
		bridge)
}

// countHost creates the table. Each packet at these hooks has passed the kernel's conntrack.
func (c *counting) countHost(ctx context.Context, n *lab.Node) error {
	_, err := n.ExecInput(ctx, `table inet `+hostCounter+` {
	chain comes { type filter hook prerouting priority -150; iif != "lo" meta l4proto udp counter; }
	chain sends { type filter hook output priority -150; meta l4proto udp counter; }
}
`, "nft", "-f", "-")
	return err
}

// costs counts each kind of packet of a path.
func (c *counting) costs(ctx context.Context, from lab.Place, to netip.AddrPort,
	said walk.Costs) (costs walk.Costs, err error) {
	for _, kind := range []struct {
		name string
		send func(to netip.AddrPort, n int) (sent int, err error)
		said packet.Cost
		cost *packet.Cost
	}{{"first packet", firsts, said.First, &costs.First}, {"later packet", laters, said.Later, &costs.Later},
		{"answer", answers, said.Reply, &costs.Reply}} {
		*kind.cost, err = c.cost(ctx, from, kind.said, func(n int) (int, error) { return kind.send(to, n) })
		if err != nil {
			return costs, fmt.Errorf("%s: %w", kind.name, err)
		}
	}
	return costs, nil
}

// cost sends packets until the count equals the walk's. ovs-vswitchd may remove megaflows at any
// time, so cost returns another count only after five tries.
func (c *counting) cost(ctx context.Context, from lab.Place, said packet.Cost,
	send func(n int) (int, error)) (cost packet.Cost, err error) {
	for range 5 {
		var before, after tally
		if err = c.everywhere(func(n *lab.Node) error {
			_,
				err := n.Exec(ctx, "ovs-appctl", "revalidator/purge")
			return err
		}); err != nil {
			return cost, err
		}
		// create the megaflows
		if err = lab.Do(from, func() (err error) { _, err = send(packets / 2); return err }); err != nil {
			continue
		}
		if before, err = c.read(ctx); err != nil {
			return cost, err
		}
		sent := 0
		if err = lab.Do(from, func() (err error) { sent, err = send(packets); return err }); err != nil {
			continue
		}
		if after, err = c.read(ctx); err != nil {
			return cost, err
		}
		if cost, err = after.since(before, sent); err == nil && cost == said {
			break
		}
	}
	return cost, err
}

// tally holds the counters at one moment.
type tally struct {
	flows map[string]megaflow // by node and UFID
	hosts int
}

type megaflow struct{ packets, passes int }

func (c *counting) read(ctx context.Context) (tally, error) {
	type found struct {
		flows map[string]megaflow
		host  int
	}
	nodes := make([]found, len(c.d.lab.Nodes()))
	var all []func() error
	for i, n := range c.d.lab.Nodes() {
		all = append(all, func() error {
			flows, err := n.Exec(ctx, "ovs-appctl", "dpctl/dump-flows", "-m")
			if err != nil {
				return err
			}
			host, err := n.Exec(ctx, "nft", "list", "table", "inet", hostCounter)
			for _, m := range countedPackets.FindAllStringSubmatch(host, -1) {
				k, _ := strconv.Atoi(m[1])
				nodes[i].host += k
			}
			nodes[i].flows = parseMegaflows(n.Name(), flows)
			return err
		})
	}
	err := lab.Together(all...)
	t := tally{flows: map[string]megaflow{}}
	for _, f := range nodes {
		t.hosts += f.host
		for k, x := range f.flows {
			t.flows[k] = x
		}
	}
	return t, err
}

var (
	countedPackets = regexp.MustCompile(`\bpackets (\d+)`)
	megaflowLine   = regexp.MustCompile(`ufid:([0-9a-f-]+),.*\bipv[46]\([^)]*\bproto=17[,/)].* packets:(\d+),.* actions:(.*)$`)
	ctAction       = regexp.MustCompile(`\bct\(`)
	tooLong        = regexp.MustCompile(`\bgt\(`)
)

// parseMegaflows reads the megaflows of UDP from dpctl/dump-flows -m.
func parseMegaflows(node, out string) map[string]megaflow {
	flows := map[string]megaflow{}
	for line := range strings.Lines(out) {
		if m := megaflowLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			n, _ := strconv.Atoi(m[2])
			flows[node+" "+m[1]] = megaflow{n, len(ctAction.FindAllString(withoutTooLong(m[3]), -1))}
		}
	}
	return flows
}

// withoutTooLong removes the actions of check_pkt_len for longer packets than ours.
func withoutTooLong(actions string) string {
	for {
		at := tooLong.FindStringIndex(actions)
		if at == nil {
			return actions
		}
		end, depth := at[1], 1
		for ; end < len(actions) && depth > 0; end++ {
			switch actions[end] {
			case '(':
				depth++
			case ')':
				depth--
			}
		}
		actions = actions[:at[0]] + actions[end:]
	}
}

// since returns the cost of each packet since an earlier tally.
func (t tally) since(before tally, packets int) (cost packet.Cost, err error) {
	lookups, passes, hosts := 0, 0, t.hosts-before.hosts
	for k, old := range before.flows {
		if t.flows[k].packets < old.packets {
			return cost, fmt.Errorf("a megaflow went away, and what it had counted")
		}
	}
	for k, f := range t.flows {
		n := f.packets - before.flows[k].packets
		lookups += n
		passes += n * f.passes
	}
	for _, x := range []struct {
		what  string
		count int
		to    *int
	}{{"datapath lookups", lookups, &cost.Lookups}, {"conntrack passes", passes + hosts, &cost.Passes},
		{"passes in hosts", hosts, &cost.InHosts}} {
		each := float64(x.count) / float64(packets)
		*x.to = int(math.Round(each))
		if math.Abs(each-math.Round(each)) > least {
			return cost, fmt.Errorf("%d packets made %d %s, %.2f for each", packets, x.count, x.what, each)
		}
	}
	return cost, nil
}

// firsts sends the first packet of each of n connections. The last is answered, so all have arrived
// then.
func firsts(to netip.AddrPort, n int) (sent int, err error) {
	for i := range n {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		if err != nil {
			return i, err
		}
		defer conn.Close()
		if err = pace(conn, "quiet", i); i == n-1 && err == nil {
			err = answered(conn, "get", 1)
		}
		if err != nil {
			return i, err
		}
	}
	return n, nil
}

// laters sends n packets of an established connection.
func laters(to netip.AddrPort, n int) (sent int, err error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := answered(conn, "get", 1); err != nil {
		return 0, err
	}
	for i := range n {
		if err := pace(conn, "quiet", i); err != nil {
			return i, err
		}
	}
	return n, answered(conn, "get", 1)
}

// answers makes the server send n replies.
func answers(to netip.AddrPort, n int) (sent int, err error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	return n, answered(conn, fmt.Sprintf("many %d", n), n)
}

func pace(conn net.Conn, text string, i int) error {
	if i%10 == 9 {
		time.Sleep(time.Millisecond) // so that no queue on the path must hold them all
	}
	_, err := conn.Write([]byte(text))
	return err
}

// answered sends a request and waits for n replies.
func answered(conn net.Conn, request string, n int) error {
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte(request)); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	for i := range n {
		if _, err := conn.Read(buf); err != nil {
			return fmt.Errorf("answer %d of %d: %w", i+1, n, err)
		}
	}
	return nil
}
