package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/lab/attack"
	"hairpin/pipeline"
)

// Names of what keeps one pod or client from exhausting the node's state tables.
const (
	byZoneLimit = "the limit of the conntrack zone: of all pods (service-engine = openflow) or of each (ovn)"
	byFlowLimit = "the limit of learned flows: further clients are served, and not remembered"
)

// smallLimit is a limit as an administrator can set it, because filling the default limits takes
// long. The agent does not change it.
const smallLimit = 500

// limitAttacks returns attacks that fill a node's tables of connections and clients.
func limitAttacks() []Attack {
	return []Attack{
		{Who: attacker, What: "opens more connections than its conntrack zone takes", By: byZoneLimit, try: fillZone},
		{Who: clientName, What: "uses a Service with session affinity from more addresses than a node remembers",
			By: byFlowLimit, Not: func(w *world) string {
				if w.openflow {
					return ""
				}
				return "OVN remembers clients in flows of its own, without a limit"
			}, try: fillAffinity},
		{Who: clientName, What: "sends to an isolated pod from 10 000 addresses",
			By: "megaflows that match as many bits of an address as decide", Not: func(w *world) string {
				if w.openflow {
					return ""
				}
				return noPolicies.Why
			}, try: fillMegaflows},
	}
}

// fillZone opens connections from a pod until its zone is full. Others can still connect: the host,
// pods of other nodes to Services, and on the userspace datapath pods of the node to pods. With
// service-engine = ovn, pods of the node can also still connect to Services.
func fillZone(ctx context.Context, w *world) (out outcome, err error) {
	f, node, datapath := families()[0], w.lab.Node("node-a"), "system"
	if w.userspace {
		datapath = "netdev"
	}
	zone, err := w.attackersZone(ctx)
	if err != nil {
		return outcome{}, err
	}
	limit := func(verb string, value ...string) error {
		_, err := node.Exec(ctx, append([]string{"ovs-vsctl", verb, datapath, zone}, value...)...)
		return err
	}
	count := func() (n int, err error) {
		text, err := node.Exec(ctx, "ovs-appctl", "dpctl/ct-get-limits", "zone="+zone)
		if _, after, ok := strings.Cut(text, "limit="+strconv.Itoa(smallLimit)+",count="); ok && err == nil {
			return strconv.Atoi(strings.TrimSpace(after))
		}
		return 0, errors.Join(err, fmt.Errorf("the limit is not there: %q", text))
	}
	if err := limit("set-zone-limit", strconv.Itoa(smallLimit)); err != nil {
		return outcome{}, err
	}
	defer func() {
		ctx = context.WithoutCancel(ctx)
		err = errors.Join(err, limit("del-zone-limit"))
	}()
	most := smallLimit
	err = w.until(ctx, "the limit", func() error {
		n, err := count()
		most = max(most, n) // a limit ends no connection
		return err
	})
	if err != nil {
		return outcome{}, err
	}
	from, remote := w.endpoints[attacker], w.services["podremote"]
	to := netip.AddrPortFrom(remote.clusterIPs[0], remote.port)
	var frames [][]byte
	for port := range uint16(2 * smallLimit) {
		packet := attack.UDP(netip.AddrPortFrom(from.address(f), 50000+port), to, newMark("flood"))
		frames = append(frames, attack.Frame(w.macOf(attacker), w.gatewayMAC(), packet))
	}
	err = w.until(ctx, "the zone is full", func() error {
		if err := attack.Send(from.place, podLink, frames...); err != nil {
			return err
		}
		if n, err := count(); err != nil || n < smallLimit {
			return errors.Join(err, fmt.Errorf("there are %d connections of %d", n, smallLimit))
		}
		return nil
	})
	if err != nil {
		return outcome{}, err
	}
	if n, err := count(); err != nil || n > most {
		return takenWith("there are %d connections of %d", n, most), err
	}
	if out := w.othersConnect(ctx, to); out.taken {
		return out, nil
	}
	return refusedWith("%d connections were tracked; the host and other pods got theirs", smallLimit), nil
}

// attackersZone returns the conntrack zone of the attacker's connections.
func (w *world) attackersZone(ctx context.Context) (string, error) {
	if w.openflow {
		return strconv.Itoa(claims.ZoneServices), nil
	}
	zones, err := w.lab.Node("node-a").Exec(ctx, "ovn-appctl", "-t", "ovn-controller", "ct-zone-list")
	if err != nil {
		return "", err
	}
	_, after, _ := strings.Cut(zones, "default_"+attacker+" ")
	zone, _, _ := strings.Cut(after, "\n")
	if zone == "" {
		return "", fmt.Errorf("no conntrack zone of %s in %q", attacker, zones)
	}
	return zone, nil
}

// othersConnect tries connections that a full zone of the attacker's does not affect.
func (w *world) othersConnect(ctx context.Context, service netip.AddrPort) outcome {
	f := families()[0]
	type ask struct {
		from string
		to   netip.AddrPort
	}
	asks := []ask{{clientName, netip.AddrPortFrom(w.endpoints["host-a"].address(f), hostPort)}, {"pod-c1", service}}
	if w.userspace || !w.openflow { // the kernel drops packets that begin a connection in a full zone
		asks = append(asks, ask{neighbour, netip.AddrPortFrom(w.endpoints["pod-b1"].address(f), podPort)})
	}
	if !w.openflow {
		asks = append(asks, ask{neighbour, service})
	}
	for _, x := range asks {
		if a := w.asks(ctx, x.from, x.to); a.Error != "" {
			return takenWith("%s does not reach %s: %s", x.from, x.to, a.Error)
		}
	}
	return outcome{}
}

// affinityTable is the table of learned flows, as an argument of ovs-ofctl.
var affinityTable = "table=" + strconv.Itoa(pipeline.SvcSessionAffinity)

// smallTable limits learned flows. usual restores the limit and deletes the flows.
func (w *world) smallTable(ctx context.Context) (usual func() error, err error) {
	node := w.lab.Node("node-a")
	column := "flow_tables:" + strconv.Itoa(pipeline.SvcSessionAffinity)
	row, err := node.Exec(ctx, "ovs-vsctl", "get", "Bridge", claims.ServiceBridge, column)
	if err != nil {
		return nil, err
	}
	row = strings.TrimSpace(row)
	before, err := node.Exec(ctx, "ovs-vsctl", "get", "Flow_Table", row, "flow_limit")
	if err != nil {
		return nil, err
	}
	set := func(ctx context.Context, limit string) error {
		_, err := node.Exec(ctx, "ovs-vsctl", "set", "Flow_Table", row, "flow_limit="+limit)
		return err
	}
	return func() error {
		ctx := context.WithoutCancel(ctx)
		_, err := node.Exec(ctx, "ovs-ofctl", "del-flows", claims.ServiceBridge, affinityTable)
		return errors.Join(err, set(ctx, strings.TrimSpace(before)))
	}, set(ctx, strconv.Itoa(smallLimit))
}

// remembered returns the number of learned flows.
func (w *world) remembered(ctx context.Context) (int, error) {
	text, err := w.lab.Node("node-a").Exec(ctx, "ovs-ofctl", "dump-aggregate", claims.ServiceBridge, affinityTable)
	_, after, _ := strings.Cut(text, "flow_count=")
	n, bad := strconv.Atoi(strings.TrimSpace(after))
	return n, errors.Join(err, bad)
}

// fillAffinity sends requests from many addresses of the nodes' network. A client with a learned
// flow keeps its endpoint, and clients without one are served.
func fillAffinity(ctx context.Context, w *world) (out outcome, err error) {
	f := families()[0]
	client, own := w.endpoints[clientName], w.endpoints[clientName].address(f)
	to, err := w.target(Case{To: "sticky", Path: "NodePort node-a"}, f)
	if err != nil {
		return outcome{}, err
	}
	before := w.asks(ctx, clientName, to)
	if before.Error != "" {
		return outcome{}, errors.New(before.Error)
	}
	usual, err := w.smallTable(ctx)
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, usual()) }()
	mac, nodeMAC, err := w.outerMACs("host-a")
	if err != nil {
		return outcome{}, err
	}
	ear, err := attack.Listen(client.place, outerLink)
	if err != nil {
		return outcome{}, err
	}
	defer ear.Close()
	request := func(i int) []byte {
		source := netip.AddrFrom4([4]byte{own.As4()[0], own.As4()[1], byte(100 + i/250), byte(1 + i%250)})
		return attack.Frame(mac, nodeMAC, attack.UDP(netip.AddrPortFrom(source, 44000), to, newMark("request")))
	}
	next := 0
	err = w.until(ctx, "all places are taken", func() error {
		var frames [][]byte
		for range 100 {
			frames = append(frames, request(next%5000))
			next++
		}
		if err := attack.Send(client.place, outerLink, frames...); err != nil {
			return err
		}
		if n, err := w.remembered(ctx); err != nil || n < smallLimit {
			return errors.Join(err, fmt.Errorf("%d clients are remembered of %d", n, smallLimit))
		}
		return nil
	})
	if err != nil {
		return outcome{}, err
	}
	if err := attack.Send(client.place, outerLink, request(next%5000), request((next+1)%5000)); err != nil {
		return outcome{}, err
	}
	if n, err := w.remembered(ctx); err != nil || n > smallLimit {
		return takenWith("%d clients are remembered of %d", n, smallLimit), err
	}
	for range 4 {
		if after := w.asks(ctx, clientName, to); after.Name != before.Name {
			return takenWith("%s answers a remembered client of %s: %s", after.Name, before.Name, after.Error), nil
		}
	}
	if a := w.asks(ctx, "host-b", to); a.Error != "" {
		return takenWith("a client that is not remembered is not served: %s", a.Error), nil
	}
	return refusedWith("%d clients were remembered, others were served", smallLimit), nil
}

// fillMegaflows sends packets from 10 000 addresses to a pod that accepts 80 of them, each by a
// CIDR block of its own. Megaflows for each address would fill the datapath's table, and then Open
// vSwitch forgets those of others. There are about seven for each block.
func fillMegaflows(ctx context.Context, w *world) (out outcome, err error) {
	const networks, hosts, most = 40, 250, 1000
	f := families()[0]
	client, own := w.endpoints[clientName], w.endpoints[clientName].address(f).As4()
	source := func(network, host int) netip.Addr {
		return netip.AddrFrom4([4]byte{own[0], own[1], byte(100 + network), byte(host)})
	}
	var blocks []string
	block := func(a netip.Addr) {
		blocks = append(blocks, fmt.Sprintf("{ipBlock: {cidr: '%v'}}", netip.PrefixFrom(a, a.BitLen())))
	}
	for _, f := range families() { // a client that is served: then the policy is in force
		block(client.address(f))
	}
	for network := range networks {
		for host := 1; host <= hosts; host += 125 {
			block(source(network, host))
		}
	}
	remove, err := w.putAll(ctx, podsNamespace, netpol("trial", isolatedTarget,
		"policyTypes: [Ingress], ingress: [{from: ["+strings.Join(blocks, ", ")+"]}]"))
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := w.until(ctx, "the policy is in force", func() error {
		return w.probeAll(ctx, probes("", clientLocal), probes("", fromNeighbour), w.patience())
	}); err != nil {
		return outcome{}, err
	}
	to, err := w.target(Case{To: clientLocal.to, Path: clientLocal.path}, f)
	if err != nil {
		return outcome{}, err
	}
	mac, nodeMAC, err := w.outerMACs("host-a")
	if err != nil {
		return outcome{}, err
	}
	before, err := w.megaflows(ctx)
	if err != nil {
		return outcome{}, err
	}
	highest := before
	for network := range networks {
		var frames [][]byte
		for host := range hosts {
			packet := attack.UDP(netip.AddrPortFrom(source(network, 1+host), 44000), to, newMark("flood"))
			frames = append(frames, attack.Frame(mac, nodeMAC, packet))
		}
		if err := attack.Send(client.place, outerLink, frames...); err != nil {
			return outcome{}, err
		}
		n, err := w.megaflows(ctx)
		if err != nil {
			return outcome{}, err
		}
		highest = max(highest, n)
	}
	if highest-before > most {
		return takenWith("there are %d megaflows, %d more than before", highest, highest-before), nil
	}
	if out := w.othersConnect(ctx, netip.AddrPortFrom(w.services["podremote"].clusterIPs[0],
		w.services["podremote"].port)); out.taken {
		return out, nil
	}
	return refusedWith("%d more megaflows than before, others connect", highest-before), nil
}

// megaflows returns the number of flows of node-a's datapath.
func (w *world) megaflows(ctx context.Context) (int, error) {
	text, err := w.lab.Node("node-a").Exec(ctx, "ovs-appctl", "dpctl/show")
	_, after, _ := strings.Cut(text, "flows: ")
	line, _, _ := strings.Cut(after, "\n")
	n, bad := strconv.Atoi(strings.TrimSpace(line))
	return n, errors.Join(err, bad)
}
