package agent_test

import (
	"context"
	bits "encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
	"hairpin/report"
)

// TestEgressNotInCircles: two nodes that consider each other dead both have an egress address, and
// each sends packets of unknown connections to the other. There they end: both for a connection
// that is unknown to both, and for one that both know and consider invalid.
func TestEgressNotInCircles(t *testing.T) {
	t.Parallel()
	l := startDemoIn(t, cluster.ModeShared)
	for _, n := range l.Nodes() {
		waitWell(t, n)
	}
	assignable(t, l, "node-b", "node-c")
	put(t, l, "egressip.yaml", carriedAs([]string{egressAddress}, "target: podlocal", egressAddress+" node-b"))
	var pod lab.Place
	for _, p := range l.Node("node-a").Pods() {
		if p.Name() == "pod-a1" {
			pod = p
		}
	}
	const port = 20003
	client := netip.MustParseAddrPort("172.18.0.100:9000")
	uses := func(where string) {
		t.Helper()
		eventually(t, 20*time.Second, "a port is used "+where, func() (bool, string) {
			a := lab.Get(t.Context(), pod, probe.Request{Protocol: "tcp", To: client, Port: port, Timeout: time.Second})
			return a.Error == "" && a.Saw == netip.AddrPortFrom(netip.MustParseAddr(egressAddress), port),
				fmt.Sprint(a.Saw, a.Error)
		})
	}
	uses("by way of node-b")
	for n, other := range map[string]string{"node-b": "10.244.3.2", "node-c": "10.244.2.2"} {
		sh(t, l.Node(n), "nft 'add table inet deaf { chain out { type filter hook output priority 0; ip daddr "+other+
			" tcp dport 9 drop; }; }'\n"+
			// nor do they receive each other's announcements
			"ovs-ofctl add-flow br-ex priority=1000,arp,in_port=eth0,arp_spa="+egressAddress+",actions=drop")
	}
	eventually(t, 20*time.Second, "node-c takes over", func() (bool, string) {
		rows := sh(t, l.Node("node-c"), "ovn-nbctl lr-nat-list GR_node-c")
		return strings.Contains(rows, egressAddress), rows
	})
	put(t, l, "egressip.yaml", carriedAs([]string{egressAddress}, "target: podlocal", egressAddress+" node-c"))
	for _, n := range []string{"node-b", "node-c"} {
		eventually(t, 4*time.Second, n+" sends on to the other", func() (bool, string) {
			flows := sh(t, l.Node(n), "ovs-ofctl dump-flows br-ex table=1")
			return strings.Contains(flows, "IN_PORT") &&
				strings.Contains(sh(t, l.Node(n), "ovn-nbctl lr-nat-list GR_"+n), egressAddress), flows
		})
	}
	heard := hearing(t, l, "node-b", "node-c")
	const each = 3
	macs := map[string]cluster.MAC{"node-b": {2, 0x42, 0xac, 0x12, 0, 4}, "node-c": {2, 0x42, 0xac, 0x12, 0, 5}}
	shoot := func(port uint16, at ...string) {
		for range each {
			for _, n := range at {
				if err := lab.Do(l.Host("client"), func() error {
					return sendTCP(macs[n], client, netip.AddrPortFrom(netip.MustParseAddr(egressAddress), port))
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	shoot(port+1, "node-b", "node-c") // unknown to both
	eventually(t, 10*time.Second, "a frame to each has come back from the other", func() (bool, string) {
		n := heard(port + 1)
		return n[port+1] >= 6*each, fmt.Sprint(n)
	})

	sh(t, l.Node("node-b"), "ovs-ofctl --strict del-flows br-ex priority=1000,arp,in_port=eth0,arp_spa="+egressAddress)
	eventually(t, 10*time.Second, "node-b hears node-c, and lets go", func() (bool, string) {
		r, err := reportOf(t.Context(), l.Node("node-b"))
		return err == nil && slices.ContainsFunc(r.Egress, func(e report.Egress) bool { return e.Node == "node-c" }),
			fmt.Sprint(r.Egress, err)
	})
	shoot(port, "node-b") // node-b knows this one
	shoot(port+2, "node-b")
	eventually(t, 10*time.Second, "the last has come back", func() (bool, string) {
		n := heard(port + 2)
		return n[port+2] >= each, fmt.Sprint(n)
	})
	// the first ends where it arrives
	want := map[int]int{port: each, port + 1: 3 * 2 * each, port + 2: 3 * each}
	for port, n := range heard(port, port+1, port+2) {
		t.Logf("packets to port %d: the two nodes saw %d frames", port, n)
		if n > want[port] {
			t.Errorf("packets to port %d go in circles: the two nodes saw %d frames, not %d", port, n, want[port])
		}
	}
}

// assignable labels Nodes in the manifests.
func assignable(t *testing.T, l *lab.Lab, names ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(l.Dir(), "manifests/nodes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	docs := strings.Split(string(text), "\n---\n")
	for i, d := range docs {
		for _, n := range names {
			if strings.Contains(d, "\n  name: "+n+"\n") {
				docs[i] = strings.Replace(d, "  labels:\n", "  labels:\n    k8s.ovn.org/egress-assignable: \"\"\n", 1)
			}
		}
	}
	put(t, l, "nodes.yaml", strings.Join(docs, "\n---\n"))
}

// hearing counts the frames to ports of the egress address on nodes' uplinks, until it is read.
func hearing(t *testing.T, l *lab.Lab, names ...string) func(ports ...int) map[int]int {
	t.Helper()
	for _, n := range names {
		t.Cleanup(func() { _, _ = l.Node(n).Exec(context.Background(), "sh", "-c", "kill $(cat /tmp/heard.pid)") })
		sh(t, l.Node(n), "tcpdump -i eth0 -nnlve 'tcp and dst host "+egressAddress+
			"' >/tmp/heard 2>/tmp/heard.err & echo $! >/tmp/heard.pid")
		eventually(t, 5*time.Second, n+" hears", func() (bool, string) {
			out := sh(t, l.Node(n), "cat /tmp/heard.err")
			return strings.Contains(out, "listening"), out
		})
	}
	return func(ports ...int) map[int]int {
		count := map[int]int{}
		for _, n := range names {
			text := sh(t, l.Node(n), "cat /tmp/heard")
			for _, p := range ports {
				for line := range strings.Lines(text) {
					if strings.Contains(line, fmt.Sprintf("> %s.%d:", egressAddress, p)) &&
						strings.Contains(line, fmt.Sprint("seq ", noWindow)) {
						count[p]++
					}
				}
			}
		}
		return count
	}
}

// noWindow is a sequence number outside every connection's window.
const noWindow = 0x70000000

// sendTCP sends the reply to the first packet of a connection that does not exist.
func sendTCP(to cluster.MAC, from, dst netip.AddrPort) error {
	src4, dst4 := from.Addr().As4(), dst.Addr().As4()
	tcp := bits.BigEndian.AppendUint16(bits.BigEndian.AppendUint16(nil, from.Port()), dst.Port())
	tcp = bits.BigEndian.AppendUint32(bits.BigEndian.AppendUint32(tcp, noWindow), noWindow)
	tcp = append(tcp, 5<<4, 0x12, 0xff, 0xff, 0, 0, 0, 0)
	sum := func(b []byte) uint16 {
		var s uint32
		for i := 0; i < len(b); i += 2 {
			s += uint32(bits.BigEndian.Uint16(b[i:]))
		}
		for s > 0xffff {
			s = s>>16 + s&0xffff
		}
		return ^uint16(s)
	}
	bits.BigEndian.PutUint16(tcp[16:],
		sum(append(append(append([]byte{}, src4[:]...), append(dst4[:], 0, 6, 0, byte(len(tcp)))...), tcp...)))
	ip := append(append([]byte{0x45, 0, 0, byte(20 + len(tcp)), 0, 0, 0, 0, 64, 6, 0, 0}, src4[:]...), dst4[:]...)
	bits.BigEndian.PutUint16(ip[10:], sum(ip))
	frame := append(append(append(to[:], 2, 0x42, 0xac, 0x12, 0, 0x64, 8, 0), ip...), tcp...)

	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index})
}
