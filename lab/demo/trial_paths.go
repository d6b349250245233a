package demo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"hairpin/lab"
)

// Payloads of datagrams.
const (
	longPayload = 1420 // fits the links between hosts, not those of pods
	pingPayload = 2000 // fits none of them
)

// pathTrials returns trials of the path MTU between hosts, which must stay the same or be learned.
func pathTrials() []Trial {
	const a, b = "NodePort node-a", "NodePort node-b"
	var list []Trial
	add := func(name string, try func(context.Context, *world) (string, error), not ...Exception) {
		list = append(list, Trial{Name: name, Not: not, try: try})
	}
	for _, f := range families() {
		for _, x := range []way{
			{"host-c", "hostself", b}, {"host-c", "hostother", b}, {"client", "hostself", b},
			{"host-c", "podlocal", b}, {"host-c", "podremote", b},
		} {
			for _, protocol := range []string{"udp", "tcp"} {
				try := func(ctx context.Context, w *world) (string, error) { return w.longPackets(ctx, x, protocol, f) }
				add(x.name("long packets", protocol+f.name), try, notLong(x, protocol, f)...)
			}
		}
		for _, x := range []way{{clientName, "podlocal", a}, {clientName, "podremote", a}} {
			try := func(ctx context.Context, w *world) (string, error) { return w.onePort(ctx, x, f) }
			add(x.name("whole and in fragments", "udp"+f.name), try,
				Exception{withEBPF,
					"the eBPF program leaves fragments to the host, which allocates another source port"})
		}
		x := way{"pod-a2", "pod-c1", "direct"}
		add(x.name("long ping", "icmp"+f.name),
			func(ctx context.Context, w *world) (string, error) { return w.longPing(ctx, x, f) })
		add(x.name("mtu between nodes", "tcp"+f.name),
			func(ctx context.Context, w *world) (string, error) { return w.betweenNodes(ctx, x, f) },
			Exception{onUserspace.and(inDetached), "tunnels of the userspace datapath do not learn the path MTU"})
		for _, entry := range []string{"node-a", "node-b"} {
			var not []Exception
			if f.name == "6" {
				not = append(not, Exception{onUserspace, userspacePTB})
			}
			add("download "+farName+" outer balancer "+entry+" tcp"+f.name,
				func(ctx context.Context, w *world) (string, error) { return w.download(ctx, entry, f) }, not...)
		}
	}
	add("long answers pod-c1 client egress udp4",
		func(ctx context.Context, w *world) (string, error) { return w.longAnswers(ctx, true) })
	add("long answers, no discovery pod-c1 client egress udp4",
		func(ctx context.Context, w *world) (string, error) { return w.longAnswers(ctx, false) },
		Exception{onUplink, "OVN's gateway router fragments no packet"})
	add("larger uplink node-c", func(ctx context.Context, w *world) (string, error) { return w.largerUplink(ctx) })
	return list
}

// notLong returns where longPackets is not tried.
func notLong(x way, protocol string, f family) (not []Exception) {
	add := func(in labs, why string) { not = append(not, Exception{in, why}) }
	pods := strings.HasPrefix(x.to, "pod")
	if protocol == "udp" {
		add(onUserspace.and(before4, inOthers, withOVN), userspaceFragments)
		if pods && f.name == "4" {
			add(inShared.and(withOVN), sharedFragments)
		} else if pods {
			add(onUserspace.and(before4, inShared, withOVN), userspaceFragments)
		}
	}
	if x.from == "host-c" && x.to == "podremote" && protocol+f.name == "udp4" {
		// the pod is on the client's node, so its answers go by the tunnel of which the client
		// learned the MTU
		add(onKernel.and(withFlows, inShared), sharedMTU)
	}
	if !pods && (protocol == "udp" || x.to == "hostself") {
		add(inOthers, hostReports)
	}
	if x.to == "hostself" && f.name == "6" {
		add(withFlows, forwardedIPv6)
	}
	return not
}

// longPackets sends packets that fit the links between hosts, but not those of pods, and expects
// them back. Hosts must not use pods' MTU for another host, unless they sent to a pod there.
func (w *world) longPackets(ctx context.Context, x way, protocol string, f family) (string, error) {
	if err := w.forgetMTUs(ctx); err != nil {
		return "", err
	}
	conn, err := w.dialWay(ctx, x, protocol, f)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	n := 1
	if protocol == "udp" {
		n, err = w.exchange(conn, longPayload, longPayload)
	} else if _, err = w.greeting(conn, protocol); err == nil {
		err = w.echo(conn, make([]byte, 1<<17))
	}
	if err != nil {
		return "", err
	}
	found, err := w.learnedMTUs()
	if err != nil {
		return "", err
	}
	_, entry, _ := strings.Cut(x.path, " ")
	note := triesNote(n)
	if strings.HasPrefix(x.to, "pod") && protocol == "udp" {
		client := learnedMTU{x.from, hostPlace(entry), f.name, podMTU}
		if i := slices.Index(found, client); i >= 0 {
			found, note = slices.Delete(found, i, i+1), strings.TrimSpace(note+" the client learns the pods' MTU")
		}
	}
	if len(found) > 0 {
		return "", fmt.Errorf("hosts learned %v", found)
	}
	return note, nil
}

// learnedMTU is an MTU that a host learned for the path to another one.
type learnedMTU struct {
	at, to, family string
	mtu            int
}

func (l learnedMTU) String() string {
	return fmt.Sprintf("at %s: MTU %d to %s over IPv%s", l.at, l.mtu, l.to, l.family)
}

// hostPlaces returns the hosts of the demo's nodes, and the client.
func hostPlaces() []string { return []string{"host-a", "host-b", "host-c", clientName} }

// flushMTUs makes a host or a pod forget the path MTUs that it learned.
const flushMTUs = "ip -4 route flush cache; ip -6 route flush cache"

// forgetMTUs makes all hosts forget the MTUs that they learned.
func (w *world) forgetMTUs(ctx context.Context) error {
	for _, name := range hostPlaces() {
		if err := w.shell(ctx, name, flushMTUs); err != nil {
			return err
		}
	}
	return nil
}

// learnedMTUs returns all MTUs that hosts have learned for the paths to hosts of nodes.
func (w *world) learnedMTUs() (list []learnedMTU, err error) {
	for _, at := range hostPlaces() {
		for _, to := range hostPlaces()[:3] {
			for _, f := range families() {
				mtu, err := w.mtuTo(at, w.endpoints[to].address(f))
				if err != nil {
					return nil, err
				}
				if at != to && mtu != 0 {
					list = append(list, learnedMTU{at, to, f.name, mtu})
				}
			}
		}
	}
	return list, nil
}

// mtuTo returns the MTU of a place's route to an address, 0 if the link's MTU applies.
func (w *world) mtuTo(at string, to netip.Addr) (mtu int, err error) {
	err = lab.Do(w.endpoints[at].place, func() error {
		routes, err := netlink.RouteGet(to.AsSlice())
		if err == nil && len(routes) > 0 {
			mtu = routes[0].MTU
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("route of %s to %s: %w", at, to, err)
	}
	return mtu, err
}

// shell runs a script on a node's host or another machine.
func (w *world) shell(ctx context.Context, at, script string) error {
	var err error
	if node := w.lab.Node(nodeOf(at)); node != nil {
		_, err = node.Exec(ctx, "sh", "-ec", script)
	} else {
		_, err = w.lab.Host(at).Exec(ctx, "sh", "-ec", script)
	}
	return err
}

// nodeOf returns the node of a host's place.
func nodeOf(place string) string { return strings.Replace(place, "host-", "node-", 1) }

// changed runs a script and returns a function that runs the undo script.
func (w *world) changed(ctx context.Context, at, script, undo string) (func() error, error) {
	return func() error { return w.shell(context.WithoutCancel(ctx), at, undo) }, w.shell(ctx, at, script)
}

// onePort makes a client whose route has a smaller MTU send two datagrams from one port: one in a
// single packet, then one in fragments. The endpoint must see one client.
func (w *world) onePort(ctx context.Context, x way, f family) (note string, err error) {
	to, err := w.wayTo(x, f)
	if err != nil {
		return "", err
	}
	route := fmt.Sprintf("%s/%d dev eth0", to.Addr(), to.Addr().BitLen())
	undo, err := w.changed(ctx, x.from, fmt.Sprintf("ip -%s route replace %s mtu %d", f.name, route, farMTU),
		"ip -"+f.name+" route delete "+route)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, undo()) }()
	conn, err := w.dialWay(ctx, x, "udp", f)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	var saw []netip.AddrPort
	for _, length := range []int{farMTU - 80, farMTU + 20} {
		g, err := w.greetingTo(conn, length)
		if err != nil {
			return "", fmt.Errorf("%d bytes: %w", length, err)
		}
		saw = append(saw, g.Saw)
	}
	if saw[0] != saw[1] {
		return "", fmt.Errorf("the endpoint saw %s, and %s for the one in fragments", saw[0], saw[1])
	}
	return "", nil
}

// longPing sends an ICMP echo request that exceeds the MTU of every link.
func (w *world) longPing(ctx context.Context, x way, f family) (note string, err error) {
	network, request, reply := "ip4:icmp", byte(8), byte(0)
	if f.name == "6" {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	message := make([]byte, 8+pingPayload)
	message[0] = request
	binary.BigEndian.PutUint16(message[4:], uint16(os.Getpid()))
	sum := uint32(0)
	for i := 0; i < len(message); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(message[i:]))
	}
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum+sum>>16)) // the kernel sets that of IPv6
	return "", w.until(ctx, "a reply of the same length", func() error {
		return lab.Do(w.endpoints[x.from].place, func() error {
			conn, err := net.Dial(network, w.endpoints[x.to].address(f).String())
			if err != nil {
				return err
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(w.patience())); err != nil {
				return err
			}
			if _, err := conn.Write(message); err != nil {
				return err
			}
			buf := make([]byte, 4096)
			for {
				n, _, err := conn.(*net.IPConn).ReadFromIP(buf)
				if err != nil || n == len(message) && buf[0] == reply {
					return err
				}
			}
		})
	})
}

// betweenNodes lowers the MTU of the routes between two nodes: TCP between their pods must
// continue. Kernel tunnels report the MTU to the sending pod. Tunnels of the userspace datapath
// ignore the MTU of routes.
func (w *world) betweenNodes(ctx context.Context, x way, f family) (note string, err error) {
	nodes := []string{"host-a", "host-c"}
	for i, at := range nodes {
		for _, g := range families() {
			to := w.endpoints[nodes[1-i]].address(g)
			route := fmt.Sprintf("%s/%d dev $dev", to, to.BitLen())
			dev := fmt.Sprintf("dev=$(ip -o -%s route get %s | sed 's/.* dev \\([^ ]*\\).*/\\1/'); ", g.name, to)
			undo, err2 := w.changed(ctx, at, dev+fmt.Sprintf("ip -%s route replace %s mtu %d", g.name, route, podMTU),
				dev+"ip -"+g.name+" route delete "+route)
			if err2 != nil {
				return "", err2
			}
			defer func() { err = errors.Join(err, undo()) }()
		}
	}
	conn, err := w.dialWay(ctx, x, "tcp", f)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := w.greeting(conn, "tcp"); err != nil {
		return "", err
	}
	if err := w.echo(conn, make([]byte, 1360)); err != nil {
		return "", err
	}
	if err := w.echo(conn, make([]byte, 1<<17)); err != nil {
		return "", err
	}
	mtu, err := w.mtuTo(x.from, w.endpoints[x.to].address(f))
	switch {
	case err != nil:
		return "", err
	case w.userspace && mtu == 0:
		return "", nil
	case mtu == 0 || mtu >= podMTU:
		return "", fmt.Errorf("the sender learned no smaller MTU: %d", mtu)
	}
	return fmt.Sprintf("the sender learned an MTU of %d", mtu), nil
}

// download receives through a load balancer's address while the MTU of the router's link falls.
func (w *world) download(ctx context.Context, entry string, f family) (note string, err error) {
	const before, after, smallest = 20 << 20, 60 << 20, 1280
	if err := w.makeFar(ctx); err != nil {
		return "", err
	}
	to, err := w.wayTo(way{farName, "outer", "balancer"}, f)
	if err != nil {
		return "", err
	}
	service := fmt.Sprintf("ip -%s route replace %s/%d via %s", f.name, to.Addr(), to.Addr().BitLen(),
		w.endpoints[hostPlace(entry)].address(f))
	link := fmt.Sprintf("ip -%s route replace %s dev %s mtu lock ", f.name, far(f).Addr(), farName)
	undo, err := w.changed(ctx, "underlay", service+"; "+link+"1500",
		fmt.Sprintf("ip -%s route delete %s; %s%d", f.name, to.Addr(), link, farMTU))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, undo()) }()
	conn, err := w.dial(ctx, clientName, "tcp", f, netip.AddrPortFrom(far(f).Addr(), 0), to)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := w.greeting(conn, "tcp"); err != nil {
		return "", err
	}
	begin := time.Now()
	if err := conn.SetDeadline(begin.Add(w.longer(30 * time.Second))); err != nil {
		return "", err
	}
	go func() { // runs until the connection is closed
		for chunk := make([]byte, 1<<16); ; {
			if _, err := conn.Write(chunk); err != nil {
				return
			}
		}
	}()
	got, fell, buf := 0, false, make([]byte, 1<<16)
	for got < after {
		n, err := conn.Read(buf)
		if got += n; err != nil {
			return "", fmt.Errorf("after %d bytes: %w", got, err)
		}
		if !fell && got >= before {
			fell = true
			if err := w.shell(ctx, "underlay", fmt.Sprint(link, smallest)); err != nil {
				return "", err
			}
		}
	}
	return fmt.Sprintf("%d MB in %.1f s", got>>20, time.Since(begin).Seconds()), nil
}

// largerUplink raises the MTU of a node's uplink: no problem occurs, and pods keep theirs.
func (w *world) largerUplink(ctx context.Context) (note string, err error) {
	const node, pod, sender = "node-c", "pod-c1", "pod-a2"
	// An earlier trial made it learn a smaller MTU for the path.
	for _, p := range w.lab.Node("node-a").Pods() {
		if _, err := p.Exec(ctx, "sh", "-ec", flushMTUs); err != nil {
			return "", err
		}
	}
	undo, err := w.changed(ctx, "host-c", "ip link set eth0 mtu 2000", "ip link set eth0 mtu 1500")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, undo()) }()
	if out, err := w.lab.Node(node).Exec(ctx, "hairpin", "status", "--wait=10s"); err != nil {
		return "", fmt.Errorf("hairpin status: %w: %s", err, out)
	}
	err = lab.Do(w.endpoints[pod].place, func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil && link.Attrs().MTU != podMTU {
			err = fmt.Errorf("the pod's link has an MTU of %d", link.Attrs().MTU)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return w.fullPackets(ctx, way{sender, pod, "direct"}, families()[0])
}
