package bench

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/lab"
	"hairpin/lab/probe"
	"hairpin/lab/trace"
	"hairpin/plan"
	"hairpin/walk"
	"hairpin/walk/packet"
)

// startFlows returns a node with two pods on br-svc, as the plan has them. It has a Service of each
// family whose endpoint is the first pod.
func startFlows(t *testing.T) (*world, *side, []*cluster.Frontend) {
	t.Helper()
	w := &world{opt: Options{Out: io.Discard, Slow: 2}, begin: time.Now(), lab: lab.Start(t, lab.Config{})}
	s, err := w.flows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.addPods(t.Context()); err != nil {
		t.Fatal(err)
	}
	var list []*cluster.Frontend
	for i, vip := range []string{"10.96.0.200", "fd00:10:96::200"} {
		list = append(list, frontend("server", netip.AddrPortFrom(netip.MustParseAddr(vip), 80),
			netip.AddrPortFrom(s.pods[0].IPs()[i], inside)))
	}
	if err := s.flows(t.Context(), list...); err != nil {
		t.Fatal(err)
	}
	if err := s.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w, s, list
}

// Pods on br-svc reach a Service, each other, and themselves through the Service, and resolve each
// other's addresses first.
func TestPodsByFlows(t *testing.T) {
	w, s, list := startFlows(t)
	for i, itself := range []string{"169.254.169.5", "fd69::5"} {
		vip := netip.AddrPortFrom(list[i].ClusterIP, list[i].Port)
		client := s.pods[1].IPs()[i].String()
		for name, c := range map[string]struct {
			from int
			to   netip.AddrPort
			saw  string
		}{
			"pod to Service":           {1, vip, client},
			"pod to pod":               {1, netip.AddrPortFrom(s.pods[0].IPs()[i], inside), client},
			"pod to itself by Service": {0, vip, itself},
		} {
			if err := w.works(t.Context(), s.pods[c.from], c.to); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			for _, p := range s.pods { // no neighbour entries
				if _, err := p.Exec(t.Context(), "ip", "neigh", "flush", "dev", "eth0"); err != nil {
					t.Error(err)
				}
			}
			a := lab.Get(t.Context(), s.pods[c.from],
				probe.Request{Protocol: "tcp", To: c.to, Timeout: 10 * time.Second})
			if a.Error != "" || a.Name != "pod-0" || a.Saw.Addr().String() != c.saw {
				t.Errorf("%s: %+v, want client %s", name, a, c.saw)
			}
		}
	}
}

// A pod's direct connection to an endpoint gets another source port than a tracked one through the
// Service, so that their replies can be distinguished.
func TestPodsByFlowsClash(t *testing.T) {
	w, s, list := startFlows(t)
	for i, f := range list {
		vip, direct := netip.AddrPortFrom(f.ClusterIP, f.Port), netip.AddrPortFrom(s.pods[0].IPs()[i], inside)
		if err := w.works(t.Context(), s.pods[1], vip); err != nil {
			t.Fatal(err)
		}
		ports := map[uint16]bool{}
		for _, to := range []netip.AddrPort{vip, direct} {
			a := lab.Get(t.Context(), s.pods[1],
				probe.Request{Protocol: "tcp", To: to, Port: 20000, Timeout: 10 * time.Second})
			if a.Error != "" || a.Name != "pod-0" || ports[a.Saw.Port()] {
				t.Errorf("%s: %+v, and before ports %v", to, a, ports)
			}
			ports[a.Saw.Port()] = true
		}
	}
}

// A pod on br-svc gets its address, even while another pod probes for the same one (RFC 4862,
// 5.4.3).
func TestPodsByFlowsTakeAddresses(t *testing.T) {
	_, s, _ := startFlows(t)
	victim, other := s.pods[0], s.pods[1]
	address := victim.IPs()[1].String() + "/64"
	for _, x := range []struct {
		pod    *lab.Pod
		script string
	}{
		{victim, "echo 4 >/proc/sys/net/ipv6/conf/eth0/dad_transmits; ip addr del " + address +
			" dev eth0 && ip addr add " + address + " dev eth0"},
		{other, "ip addr add " + address + " dev eth0"},
		{other, "timeout 20 sh -c 'while ip -6 addr show dev eth0 tentative | grep .; do :; done'"},
		{victim, "timeout 20 sh -c 'while ip -6 addr show dev eth0 tentative -dadfailed | grep .; do :; done'"},
	} {
		if _, err := x.pod.Exec(t.Context(), "sh", "-c", x.script); err != nil {
			t.Fatalf("%s: %v", x.pod.Name(), err)
		}
	}
	out, err := victim.Exec(t.Context(), "ip", "-6", "addr", "show", "dev", "eth0")
	if err != nil || strings.Contains(out, "dadfailed") || !strings.Contains(out, address) {
		t.Errorf("%v\n%s", err, out)
	}
}

// A switch with empty load-balancer groups tracks no packets, as one without any; with a load
// balancer it does.
func TestEmptyGroupTracksNothing(t *testing.T) {
	_, s, _ := startFlows(t)
	for _, x := range []struct {
		script string
		tracks bool
	}{
		{"ovn-nbctl --wait=sb --id=@g create load_balancer_group name=empty -- set logical_switch node-f " +
			"load_balancer_group=@g", false},
		{"ovn-nbctl --wait=sb --id=@l create load_balancer name=one 'vips={\"169.254.169.3:80\"=\"10.244.3.2:80\"}' " +
			"-- set load_balancer_group empty load_balancer=@l", true},
		{"ovn-nbctl --wait=sb clear load_balancer_group empty load_balancer", false},
	} {
		out, err := s.node.Exec(t.Context(), "sh", "-c", x.script+" && ovn-sbctl lflow-list node-f")
		if err != nil {
			t.Fatal(err)
		}
		if tracks := strings.Contains(out, "action=(reg0[2] = 1;"); tracks != x.tracks {
			t.Errorf("%s: the switch tracks packets: %v\n%s", x.script, tracks, out)
		}
	}
}

// tracer runs ofproto/trace on br-svc.
func tracer(t *testing.T, s *side) func(command string) trace.Trace {
	t.Helper()
	numbers, err := s.node.Exec(t.Context(), "ovs-vsctl", "--no-headings", "--format=csv", "--data=bare",
		"--columns=ofport,name", "list", "Interface")
	if err != nil {
		t.Fatal(err)
	}
	onBridge, err := s.node.Exec(t.Context(), "ovs-vsctl", "list-ports", claims.ServiceBridge)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for line := range strings.Lines(numbers) {
		n, name, _ := strings.Cut(strings.TrimSpace(line), ",")
		if slices.Contains(strings.Fields(onBridge), name) {
			names[n] = name
		}
	}
	return func(command string) trace.Trace {
		t.Helper()
		out, err := s.node.Exec(t.Context(), "sh", "-c", command)
		if err != nil {
			t.Errorf("%s: %v", command, err)
		}
		return trace.Parse(claims.ServiceBridge, out, func(number string) string { return names[number] })
	}
}

// The walk of packets on br-svc agrees with ofproto/trace: the flows, conntrack, the packet
// afterwards and its output.
func TestFlowsByTrace(t *testing.T) {
	_, s, list := startFlows(t)
	snapshot, node := s.snapshot(list), s.node.Name()
	state, _ := plan.Node(snapshot, node)
	walker := walk.New(walk.World{Snapshot: snapshot, States: map[string]datapath.State{node: state}})
	ask := tracer(t, s)
	for i, f := range list {
		first, second := s.pods[0], s.pods[1]
		vip, direct := netip.AddrPortFrom(f.ClusterIP, f.Port), netip.AddrPortFrom(first.IPs()[i], inside)
		far := netip.AddrPortFrom(netip.MustParseAddr([]string{"10.244.9.9", "fd00:10:244:9::9"}[i]), inside)
		for name, c := range map[string]struct {
			from    *lab.Pod
			source  netip.Addr
			to      netip.AddrPort
			replies bool
		}{
			"pod to pod":               {from: second, to: direct, replies: true},
			"pod to Service":           {from: second, to: vip, replies: true},
			"pod to itself by Service": {from: first, to: vip},
			"pod to another node":      {from: second, to: far},
			"another's address":        {from: second, source: first.IPs()[i], to: vip},
			"nobody's address": {from: second,
				source: netip.MustParseAddr([]string{"10.244.3.99", "fd00:10:244:3::99"}[i]), to: direct},
		} {
			tr, err := walker.Walk(walk.Point{Node: node, Pod: flowsOwner(c.from)},
				packet.Packet{Protocol: cluster.TCP, Src: c.source, SrcPort: 41000, Dst: c.to.Addr(),
					DstPort: c.to.Port()})
			visits := slices.Clone(tr.ForwardVisits[:1])
			if err != nil && len(tr.ForwardVisits) < 2 { // beyond the bridge, the node differs from the plan's
				t.Fatal(err)
			}
			if c.replies {
				visits = append(visits, tr.ReplyVisits...)
			}
			for _, v := range visits {
				if err := heldAgainst(v, ask(trace.Command(claims.ServiceBridge, v.Port, v))); err != nil {
					t.Errorf("%s, IPv%d, %d steps: %v", name, f.Family, len(v.Steps), err)
				}
			}
		}
	}
}

func heldAgainst(v walk.Visit, t trace.Trace) error {
	if err := t.Met(v); err != nil {
		return err
	}
	if err := t.Made(v); err != nil {
		return err
	}
	if got := strings.Join(t.Outputs, " "); got != v.Out {
		return fmt.Errorf("it leaves by %q, by the walk by %q", got, v.Out)
	}
	return nil
}

// Neighbour discovery finds pods on br-svc, for their own neighbours and for OVN's, and pods cannot
// claim other addresses.
func TestNeighborsByTrace(t *testing.T) {
	_, s, _ := startFlows(t)
	ask := tracer(t, s)
	var four, six, macs [2]string
	for i, p := range s.pods {
		four[i], six[i], macs[i] = p.IPs()[0].String(), p.IPs()[1].String(), cluster.MACFor(p.IPs()[0]).String()
	}
	arp := func(mac, sender, target string) string {
		return "arp,dl_dst=ff:ff:ff:ff:ff:ff,arp_op=1,arp_sha=" + mac + ",arp_spa=" + sender + ",arp_tpa=" + target
	}
	nd := func(kind int, sender, to, target string) string {
		return fmt.Sprintf("icmp6,dl_dst=33:33:00:00:00:01,icmpv6_type=%d,icmpv6_code=0,ipv6_src=%s,ipv6_dst=%s,nw_ttl=255,nd_target=%s", kind, sender, to, target)
	}
	const routerMAC, router, router6, group, all = "0a:58:0a:f4:03:01", "10.244.3.1", "fd00:10:244:3::1",
		"ff02::1:ff00:2", "ff02::1"
	const solicitation, advertisement = 135, 136
	pod, other := flowsPort(1), flowsPort(0)
	for name, c := range map[string]struct{ in, mac, packet, out string }{
		"ARP: another pod":                      {pod, macs[1], arp(macs[1], four[1], four[0]), other},
		"ARP: the router":                       {pod, macs[1], arp(macs[1], four[1], router), claims.ServicePatch},
		"ARP: by another's address":             {pod, macs[1], arp(macs[1], four[0], router), ""},
		"ARP: by another's Ethernet address":    {pod, macs[0], arp(macs[0], four[1], router), ""},
		"ARP: names another's Ethernet address": {pod, macs[1], arp(macs[0], four[1], router), ""},
		"ARP: the router looks": {claims.ServicePatch, routerMAC, arp(routerMAC, router, four[0]),
			other},
		"ND: another pod":              {pod, macs[1], nd(solicitation, six[1], group, six[0]), other},
		"ND: another pod, asked again": {pod, macs[1], nd(solicitation, six[1], six[0], six[0]), other},
		"ND: the router": {pod, macs[1], nd(solicitation, six[1], group, router6),
			claims.ServicePatch},
		"ND: by another's address":              {pod, macs[1], nd(solicitation, six[0], group, router6), ""},
		"ND: answers another pod":               {pod, macs[1], nd(advertisement, six[1], six[0], six[1]), other},
		"ND: answers with another's address":    {pod, macs[1], nd(advertisement, six[1], six[0], router6), ""},
		"ND: tells all, with another's address": {pod, macs[1], nd(advertisement, six[1], all, six[0]), ""},
		"ND: the router looks": {claims.ServicePatch, routerMAC,
			nd(solicitation, router6, group, six[0]), other},
		"ND: the router answers": {claims.ServicePatch, routerMAC,
			nd(advertisement, router6, six[1], router6), pod},
		"ND: may I have another's address": {pod, macs[1], nd(solicitation, "::", group, six[0]), ""},
		"ND: plays the router": {pod, macs[1],
			"icmp6,dl_dst=33:33:00:00:00:01,icmpv6_type=134,ipv6_src=" + six[1] + ",ipv6_dst=" + all, ""},
	} {
		got := ask(fmt.Sprintf("ovs-appctl ofproto/trace %s 'in_port=%s,dl_src=%s,%s'", claims.ServiceBridge, c.in,
			c.mac, c.packet))
		if out := strings.Join(got.Outputs, " "); out != c.out {
			t.Errorf("%s: it leaves by %q, not by %q; flows\n  %s", name, out, c.out, strings.Join(got.Flows, "\n  "))
		}
	}
}
