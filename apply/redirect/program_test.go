package redirect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/redirect"
)

// The node's addresses, the clients', and one of a network that the node has no route to.
var (
	node4, client4, far4 = netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.100"),
		netip.MustParseAddr("203.0.113.9")
	node6, client6 = netip.MustParseAddr("2001:db8:1::2"), netip.MustParseAddr("2001:db8:1::100")
	router4        = netip.MustParseAddr("198.51.100.1") // on another link, the next hop to 100.70.0.0/16
	behind4        = netip.MustParseAddr("100.70.0.1")
	// Of a Service, on no link of the node.
	external4, external6 = netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:113::10")
)

const nodePort, clientPort, externalPort = 30080, 40000, 443

// l4 returns the first bytes of a packet with ports.
func l4(from, to uint16) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	return b
}

// ip4 prepends an IPv4 header to a payload.
func ip4(src, dst netip.Addr, protocol byte, payload []byte, change ...func([]byte)) []byte {
	h := make([]byte, 20)
	h[0], h[8], h[9] = 0x45, 64, protocol
	binary.BigEndian.PutUint16(h[2:], uint16(20+len(payload)))
	copy(h[12:], src.AsSlice())
	copy(h[16:], dst.AsSlice())
	for _, f := range change {
		f(h)
	}
	return append(h, payload...)
}

// options inserts bytes after an IPv4 header.
func options(packet, opts []byte) []byte {
	packet = slices.Concat(packet[:20], opts, packet[20:])
	packet[0] = 0x40 | byte(5+len(opts)/4)
	binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
	return packet
}

// ip6 prepends an IPv6 header to a payload.
func ip6(src, dst netip.Addr, protocol byte, payload []byte) []byte {
	h := make([]byte, 40)
	h[0], h[6], h[7] = 0x60, protocol, 64
	binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
	copy(h[8:], src.AsSlice())
	copy(h[24:], dst.AsSlice())
	return append(h, payload...)
}

// extension returns an IPv6 extension header of 8 or 16 bytes.
func extension(then byte, eights byte, payload []byte) []byte {
	h := make([]byte, 8*(int(eights)+1))
	h[0], h[1], h[2], h[3] = then, eights, 1, 4 // PadN
	return append(h, payload...)
}

// icmp returns an ICMP message that contains a packet.
func icmp(kind, code byte, about []byte) []byte {
	return append([]byte{kind, code, 0, 0, 0, 0, 0, 0}, about...)
}

// frame prepends an Ethernet header to a packet. A zero destination is the loopback device, on
// which the programs are tested.
func frame(packet []byte) []byte {
	h := make([]byte, 14)
	binary.BigEndian.PutUint16(h[12:], unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		binary.BigEndian.PutUint16(h[12:], unix.ETH_P_IPV6)
	}
	copy(h[6:], []byte{2, 0, 0, 0, 0, 100})
	return append(h, packet...)
}

// answer marks a frame as the gateway bridge marks replies.
func answer(frame []byte) []byte {
	sender := macOf(claims.RedirectMAC)
	copy(frame[6:], sender[:])
	return frame
}

func fragmented(offset uint16) func([]byte) {
	return func(h []byte) { binary.BigEndian.PutUint16(h[6:], offset) }
}

var bridgeTarget = target{index: 77, mac: cluster.MAC{0x0a, 0x58, 0x0a, 0x2c, 0, 0}, mtu: 1400}

// load loads both programs, with the NodePort of the tests in their map.
func load(t testing.TB) *ebpf.Collection {
	t.Helper()
	col, noConntrack, err := newCollection(nil)
	if err == nil {
		err = noConntrack
	}
	if err != nil {
		var v *ebpf.VerifierError
		if errors.As(err, &v) {
			t.Fatalf("%+v", v)
		}
		t.Fatal(err)
	}
	t.Cleanup(col.Close)
	for _, p := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
		list := map[redirect.Service]redirect.Path{}
		for _, a := range []netip.Addr{node4, node6} {
			list[redirect.Service{Addr: netip.AddrPortFrom(a, nodePort), Protocol: p}] = redirect.Path{}
		}
		for _, a := range []netip.Addr{node4, external4, external6} {
			service := redirect.Service{Addr: netip.AddrPortFrom(a, externalPort), Protocol: p}
			list[service] = redirect.Path{Tracked: true}
		}
		if err := mapSet(col.Maps).add(list); err != nil {
			t.Fatal(err)
		}
	}
	return col
}

// source and destination return a packet's addresses.
func source(packet []byte) netip.Addr {
	if packet[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(packet[12:16]))
	}
	return netip.AddrFrom16([16]byte(packet[8:24]))
}

func destination(packet []byte) netip.Addr {
	if packet[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(packet[16:20]))
	}
	return netip.AddrFrom16([16]byte(packet[24:40]))
}

// answers reports whether the bridge marks a packet as a reply: its source has any Service.
func answers(packet []byte) bool {
	return slices.Contains([]netip.Addr{node4, node6, external4, external6}, source(packet))
}

// count reads a counter.
func count(t *testing.T, m *ebpf.Map, counter uint32) uint64 {
	t.Helper()
	n, err := sum(m, counter)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// packets has all kinds of packets: the client's request, whether it is redirected, and the reply,
// which is redirected if its source has a Service.
var packets = []struct {
	name           string
	request, reply []byte
	taken          bool
	fragment       bool
}{
	{name: "TCP, IPv4", taken: true,
		request: ip4(client4, node4, unix.IPPROTO_TCP, l4(clientPort, nodePort)),
		reply:   ip4(node4, client4, unix.IPPROTO_TCP, l4(nodePort, clientPort))},
	{name: "UDP, IPv4", taken: true,
		request: ip4(client4, node4, unix.IPPROTO_UDP, l4(clientPort, nodePort)),
		reply:   ip4(node4, client4, unix.IPPROTO_UDP, l4(nodePort, clientPort))},
	{name: "SCTP, IPv4", taken: true,
		request: ip4(client4, node4, unix.IPPROTO_SCTP, l4(clientPort, nodePort)),
		reply:   ip4(node4, client4, unix.IPPROTO_SCTP, l4(nodePort, clientPort))},
	{name: "TCP, IPv6", taken: true,
		request: ip6(client6, node6, unix.IPPROTO_TCP, l4(clientPort, nodePort)),
		reply:   ip6(node6, client6, unix.IPPROTO_TCP, l4(nodePort, clientPort))},
	{name: "UDP, IPv6", taken: true,
		request: ip6(client6, node6, unix.IPPROTO_UDP, l4(clientPort, nodePort)),
		reply:   ip6(node6, client6, unix.IPPROTO_UDP, l4(nodePort, clientPort))},
	{name: "SCTP, IPv6", taken: true,
		request: ip6(client6, node6, unix.IPPROTO_SCTP, l4(clientPort, nodePort)),
		reply:   ip6(node6, client6, unix.IPPROTO_SCTP, l4(nodePort, clientPort))},

	{name: "an external address, TCP", taken: true,
		request: ip4(client4, external4, unix.IPPROTO_TCP, l4(clientPort, externalPort)),
		reply:   ip4(external4, client4, unix.IPPROTO_TCP, l4(externalPort, clientPort))},
	{name: "an external address, UDP, IPv6", taken: true,
		request: ip6(client6, external6, unix.IPPROTO_UDP, l4(clientPort, externalPort)),
		reply:   ip6(external6, client6, unix.IPPROTO_UDP, l4(externalPort, clientPort))},
	{name: "an external address that is the node's", taken: true,
		request: ip4(client4, node4, unix.IPPROTO_TCP, l4(clientPort, externalPort)),
		reply:   ip4(node4, client4, unix.IPPROTO_TCP, l4(externalPort, clientPort))},
	{name: "an error to an external address", taken: true,
		request: ip4(client4, external4, unix.IPPROTO_ICMP,
			icmp(3, 3, ip4(external4, client4, unix.IPPROTO_UDP, l4(externalPort, clientPort)))),
		reply: ip4(external4, client4, unix.IPPROTO_ICMP,
			icmp(3, 3, ip4(client4, external4, unix.IPPROTO_UDP, l4(clientPort, externalPort))))},
	{name: "an external address, another port",
		request: ip4(client4, external4, unix.IPPROTO_TCP, l4(clientPort, nodePort)),
		reply:   ip4(external4, client4, unix.IPPROTO_TCP, l4(22, clientPort))},

	{name: "another port",
		request: ip4(client4, node4, unix.IPPROTO_TCP, l4(clientPort, 22)),
		reply:   ip4(node4, client4, unix.IPPROTO_TCP, l4(22, clientPort))},
	{name: "another address",
		request: ip4(client4, far4, unix.IPPROTO_TCP, l4(clientPort, nodePort)),
		reply:   ip4(far4, client4, unix.IPPROTO_TCP, l4(nodePort, clientPort))},
	{name: "the NodePort at the client's end",
		request: ip4(client4, node4, unix.IPPROTO_TCP, l4(nodePort, 22)),
		reply:   ip4(node4, client4, unix.IPPROTO_TCP, l4(22, nodePort))},
	{name: "another protocol",
		request: ip4(client4, node4, unix.IPPROTO_DCCP, l4(clientPort, nodePort)),
		reply:   ip4(node4, client4, unix.IPPROTO_DCCP, l4(nodePort, clientPort))},
	{name: "an IPv6 address that means the IPv4 one",
		request: ip6(client6, netip.AddrFrom16(node4.As16()), unix.IPPROTO_TCP, l4(clientPort, nodePort)),
		reply:   ip6(netip.AddrFrom16(node4.As16()), client6, unix.IPPROTO_TCP, l4(nodePort, clientPort))},
	{name: "cut off in the ports", request: ip4(client4, node4, unix.IPPROTO_TCP, []byte{1, 2}),
		reply: ip4(node4, client4, unix.IPPROTO_TCP, []byte{1, 2})},
	{name: "a header that is too short",
		request: ip4(client4, node4, unix.IPPROTO_TCP, l4(clientPort, nodePort), func(h []byte) { h[0] = 0x44 }),
		reply:   ip4(node4, client4, unix.IPPROTO_TCP, l4(nodePort, clientPort), func(h []byte) { h[0] = 0x44 })},

	{name: "IPv4 options", taken: true,
		request: options(ip4(client4, node4, unix.IPPROTO_TCP, l4(clientPort, nodePort)),
			[]byte{7, 7, 4, 0, 0, 0, 0, 1}),
		reply: options(ip4(node4, client4, unix.IPPROTO_TCP, l4(nodePort, clientPort)), []byte{1, 1, 1, 1})},
	{name: "IPv6, a header for every hop and one for the destination", taken: true,
		request: ip6(client6, node6, unix.IPPROTO_HOPOPTS,
			extension(unix.IPPROTO_DSTOPTS, 1, extension(unix.IPPROTO_TCP, 0, l4(clientPort, nodePort)))),
		reply: ip6(node6, client6, unix.IPPROTO_DSTOPTS, extension(unix.IPPROTO_TCP, 0, l4(nodePort, clientPort)))},
	{name: "IPv6, three extension headers", taken: true,
		request: ip6(client6, node6, unix.IPPROTO_HOPOPTS,
			extension(unix.IPPROTO_DSTOPTS, 0,
				extension(unix.IPPROTO_DSTOPTS, 0, extension(unix.IPPROTO_UDP, 0, l4(clientPort, nodePort))))),
		reply: ip6(node6, client6, unix.IPPROTO_UDP, l4(nodePort, clientPort))},
	{name: "IPv6, four extension headers",
		request: ip6(client6, node6, unix.IPPROTO_HOPOPTS,
			extension(unix.IPPROTO_DSTOPTS, 0,
				extension(unix.IPPROTO_DSTOPTS, 0,
					extension(unix.IPPROTO_DSTOPTS, 0, extension(unix.IPPROTO_UDP, 0, l4(clientPort, nodePort)))))),
		reply: ip6(node6, client6, unix.IPPROTO_ROUTING, extension(unix.IPPROTO_TCP, 0, l4(nodePort, clientPort)))},
	{name: "IPv6, a routing header",
		request: ip6(client6, node6, unix.IPPROTO_ROUTING, extension(unix.IPPROTO_TCP, 0, l4(clientPort, nodePort))),
		reply:   ip6(node6, client6, unix.IPPROTO_AH, extension(unix.IPPROTO_TCP, 1, l4(nodePort, clientPort)))},

	{name: "first fragment", fragment: true,
		request: ip4(client4, node4, unix.IPPROTO_UDP, l4(clientPort, nodePort), fragmented(0x2000)),
		reply:   ip4(node4, client4, unix.IPPROTO_UDP, l4(nodePort, clientPort), fragmented(0x2000))},
	{name: "last fragment", fragment: true,
		request: ip4(client4, node4, unix.IPPROTO_UDP, l4(clientPort, nodePort), fragmented(185)),
		reply:   ip4(node4, client4, unix.IPPROTO_UDP, l4(nodePort, clientPort), fragmented(185))},
	{name: "don't fragment", taken: true,
		request: ip4(client4, node4, unix.IPPROTO_UDP, l4(clientPort, nodePort), fragmented(0x4000)),
		reply:   ip4(node4, client4, unix.IPPROTO_UDP, l4(nodePort, clientPort), fragmented(0x4000))},
	{name: "IPv6 fragment", fragment: true,
		request: ip6(client6, node6, unix.IPPROTO_FRAGMENT, extension(unix.IPPROTO_UDP, 0, l4(clientPort, nodePort))),
		reply: ip6(node6, client6, unix.IPPROTO_HOPOPTS,
			extension(unix.IPPROTO_FRAGMENT, 0, extension(unix.IPPROTO_UDP, 0, l4(nodePort, clientPort))))},

	{name: "echo", request: ip4(client4, node4, unix.IPPROTO_ICMP, icmp(8, 0, l4(clientPort, nodePort))),
		reply: ip4(node4, client4, unix.IPPROTO_ICMP, icmp(0, 0, nil))},
	{name: "echo, IPv6", request: ip6(client6, node6, unix.IPPROTO_ICMPV6, icmp(128, 0, nil)),
		reply: ip6(node6, client6, unix.IPPROTO_ICMPV6, icmp(129, 0, nil))},
	{name: "neighbour discovery", request: ip6(client6, node6, unix.IPPROTO_ICMPV6, icmp(135, 0, node6.AsSlice())),
		reply: ip6(node6, client6, unix.IPPROTO_ICMPV6, icmp(136, 0, node6.AsSlice()))},
	{name: "unreachable", taken: true, // the client's machine rejects a reply; the pod rejects a request
		request: ip4(client4, node4, unix.IPPROTO_ICMP,
			icmp(3, 3, ip4(node4, client4, unix.IPPROTO_UDP, l4(nodePort, clientPort)))),
		reply: ip4(node4, client4, unix.IPPROTO_ICMP,
			icmp(3, 3, ip4(client4, node4, unix.IPPROTO_UDP, l4(clientPort, nodePort))))},
	{name: "fragmentation needed, from a router", taken: true,
		request: ip4(router4, node4, unix.IPPROTO_ICMP,
			icmp(3, 4, ip4(node4, behind4, unix.IPPROTO_TCP, l4(nodePort, clientPort)))),
		reply: ip4(node4, behind4, unix.IPPROTO_ICMP,
			icmp(3, 4, ip4(behind4, node4, unix.IPPROTO_TCP, l4(clientPort, nodePort))))},
	{name: "time exceeded", taken: true,
		request: ip4(client4, node4, unix.IPPROTO_ICMP,
			icmp(11, 0, ip4(node4, client4, unix.IPPROTO_TCP, l4(nodePort, clientPort)))),
		reply: ip4(node4, client4, unix.IPPROTO_ICMP,
			icmp(11, 0, ip4(client4, node4, unix.IPPROTO_TCP, l4(clientPort, nodePort))))},
	{name: "parameter problem", taken: true,
		request: ip4(client4, node4, unix.IPPROTO_ICMP,
			icmp(12, 0, ip4(node4, client4, unix.IPPROTO_TCP, l4(nodePort, clientPort)))),
		reply: ip4(node4, client4, unix.IPPROTO_ICMP,
			icmp(12, 0, ip4(client4, node4, unix.IPPROTO_TCP, l4(clientPort, nodePort))))},
	{name: "packet too big", taken: true,
		request: ip6(client6, node6, unix.IPPROTO_ICMPV6,
			icmp(2, 0, ip6(node6, client6, unix.IPPROTO_TCP, l4(nodePort, clientPort)))),
		reply: ip6(node6, client6, unix.IPPROTO_ICMPV6,
			icmp(1, 4, ip6(client6, node6, unix.IPPROTO_UDP, l4(clientPort, nodePort))))},
	{name: "an error about another connection",
		request: ip4(client4, node4, unix.IPPROTO_ICMP,
			icmp(3, 3, ip4(node4, client4, unix.IPPROTO_UDP, l4(53, clientPort)))),
		reply: ip4(node4, client4, unix.IPPROTO_ICMP,
			icmp(3, 3, ip4(client4, node4, unix.IPPROTO_UDP, l4(clientPort, 53))))},
	{name: "an error about a packet of the wrong direction",
		request: ip4(client4, node4, unix.IPPROTO_ICMP,
			icmp(3, 3, ip4(client4, node4, unix.IPPROTO_UDP, l4(clientPort, nodePort)))),
		reply: ip4(node4, client4, unix.IPPROTO_ICMP,
			icmp(3, 3, ip4(node4, client4, unix.IPPROTO_UDP, l4(nodePort, clientPort))))},
	{name: "an error about a fragment",
		request: ip4(client4, node4, unix.IPPROTO_ICMP,
			icmp(3, 3, ip4(node4, client4, unix.IPPROTO_UDP, l4(nodePort, clientPort), fragmented(185)))),
		reply: ip4(node4, client4, unix.IPPROTO_ICMP,
			icmp(3, 3, ip4(client4, node4, unix.IPPROTO_UDP, l4(clientPort, nodePort), fragmented(185))))},
	{name: "a redirect", request: ip4(client4, node4, unix.IPPROTO_ICMP,
		icmp(5, 0, ip4(node4, client4, unix.IPPROTO_TCP, l4(nodePort, clientPort)))),
		reply: ip4(node4, client4, unix.IPPROTO_ICMP,
			icmp(5, 0, ip4(client4, node4, unix.IPPROTO_TCP, l4(clientPort, nodePort))))},
	{name: "ARP", request: append([]byte{0x45}, make([]byte, 27)...), reply: append([]byte{0x45}, make([]byte, 27)...)},
}

// TestPackets sends every kind of packet through both programs, and checks the verdict and the
// resulting frame.
func TestPackets(t *testing.T) {
	ns := insidetest.NetNS(t)
	commands := `link add nic type veth peer name wire
addr add 192.0.2.2/24 dev nic
addr add 2001:db8:1::2/64 dev nic nodad
link set wire up
link set nic up
link add nic2 type veth peer name wire2
addr add 198.51.100.2/24 dev nic2
link set wire2 up
link set nic2 up mtu 1300
neigh add 198.51.100.1 lladdr 02:00:00:00:00:01 dev nic2 nud permanent
route add 100.70.0.0/16 via 198.51.100.1
link add br-ex type veth peer name switch
link set switch up
link set br-ex up
`
	run := exec.Command("ip", "-batch", "-")
	run.Stdin = bytes.NewBufferString(commands)
	if err := inside.Do(ns, func() error {
		if out, err := run.CombinedOutput(); err != nil {
			return fmt.Errorf("ip: %w: %s", err, out)
		}
		out, err := exec.Command("sysctl", "-qw", "net.ipv4.ip_forward=1",
			"net.ipv6.conf.all.forwarding=1").CombinedOutput()
		if err != nil {
			return fmt.Errorf("sysctl: %w: %s", err, out)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	col := load(t)
	to := bridgeTarget
	if err := to.put(col.Maps[claims.MapTarget]); err != nil {
		t.Fatal(err)
	}
	try := func(t *testing.T, program string, in []byte) (verdict int32, out []byte) {
		t.Helper()
		if err := inside.Do(ns, func() error {
			v, got, err := col.Programs[program].Test(in)
			verdict, out = int32(v), got
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return verdict, out
	}
	for _, p := range packets {
		t.Run(p.name, func(t *testing.T) {
			before := map[uint32]uint64{}
			for i := range uint32(counters) {
				before[i] = count(t, col.Maps[claims.MapCounters], i)
			}
			in := [2][]byte{frame(p.request), frame(p.reply)}
			if p.name == "ARP" {
				binary.BigEndian.PutUint16(in[0][12:], unix.ETH_P_ARP)
				binary.BigEndian.PutUint16(in[1][12:], unix.ETH_P_ARP)
			}
			if answers(p.reply) {
				answer(in[1])
			}
			for i, program := range []string{claims.ProgramRequest, claims.ProgramReply} {
				verdict, out := try(t, program, in[i])
				want, frame := int32(next), in[i]
				if i == 0 && p.taken || i == 1 && answers(p.reply) {
					want = redirected
				}
				if i == 0 && p.taken {
					sender := senders()[toRouter]
					if a := destination(p.request); a == external4 || a == external6 ||
						p.name == "an external address that is the node's" {
						sender = senders()[toTracked]
					}
					frame = slices.Concat(to.mac[:], sender[:], frame[12:])
				}
				if verdict != want || !bytes.Equal(out, frame) {
					t.Errorf("%s: verdict %d, want %d; frame\n%x, want\n%x", program, verdict, want, out, frame)
				}
			}
			want := map[bool]uint64{true: 1}
			for i, n := range map[uint32]uint64{countRequests: want[p.taken], countReplies: want[answers(p.reply)],
				countFragments: want[p.fragment], countNoRoute: 0} {
				if got := count(t, col.Maps[claims.MapCounters], i) - before[i]; got != n {
					t.Errorf("counter %d: %d, want %d", i, got, n)
				}
			}
		})
	}
	t.Run("not for this machine", func(t *testing.T) {
		for i, program := range []string{claims.ProgramRequest, claims.ProgramReply} {
			in := answer(frame([][]byte{packets[0].request, packets[0].reply}[i]))
			for _, mac := range [][]byte{{2, 0, 0, 0, 0, 7}, {255, 255, 255, 255, 255, 255}, {1, 0, 94, 0, 0, 1}} {
				copy(in, mac)
				if verdict, out := try(t, program, in); verdict != next || !bytes.Equal(out, in) {
					t.Errorf("%s: to %x: verdict %d, frame %x", program, mac, verdict, out)
				}
			}
		}
	})
	t.Run("not from the gateway router", func(t *testing.T) {
		for i := range len(macOf(claims.RedirectMAC)) {
			in := answer(frame(packets[0].reply))
			in[6+i] ^= 1
			if verdict, out := try(t, claims.ProgramReply, in); verdict != next || !bytes.Equal(out, in) {
				t.Errorf("from %x: verdict %d, frame %x", in[6:12], verdict, out)
			}
		}
	})
	t.Run("for a router to answer", func(t *testing.T) {
		for length, want := range map[int]int32{1400: redirected, 1401: next} {
			in := frame(ip4(client4, node4, unix.IPPROTO_UDP,
				append(l4(clientPort, nodePort), make([]byte, length-40)...)))
			if verdict, _ := try(t, claims.ProgramRequest, in); verdict != want {
				t.Errorf("%d bytes: verdict %d, want %d", length, verdict, want)
			}
		}
		for ttl, want := range map[byte]int32{0: next, 1: next, 2: redirected} {
			four, six := ip4(client4, node4, unix.IPPROTO_UDP, l4(clientPort, nodePort)),
				ip6(client6, node6, unix.IPPROTO_TCP, l4(clientPort, nodePort))
			four[8], six[7] = ttl, ttl
			for _, p := range [][]byte{four, six} {
				if verdict, _ := try(t, claims.ProgramRequest, frame(p)); verdict != want {
					t.Errorf("time to live %d: verdict %d, want %d", ttl, verdict, want)
				}
			}
		}
	})
	t.Run("longer than the way to the client", func(t *testing.T) {
		before := count(t, col.Maps[claims.MapCounters], countNoRoute)
		in := answer(frame(ip4(node4, behind4, unix.IPPROTO_UDP,
			append(l4(nodePort, clientPort), make([]byte, 1400)...))))
		if verdict, _ := try(t, claims.ProgramReply, in); verdict != next {
			t.Errorf("verdict %d", verdict)
		}
		if n := count(t, col.Maps[claims.MapCounters], countNoRoute) - before; n != 1 {
			t.Errorf("%d counted", n)
		}
	})
	t.Run("no route to the client", func(t *testing.T) {
		before := count(t, col.Maps[claims.MapCounters], countNoRoute)
		if verdict, _ := try(t, claims.ProgramReply,
			answer(frame(ip4(node4, far4, unix.IPPROTO_TCP, l4(nodePort, clientPort))))); verdict != next {
			t.Errorf("verdict %d", verdict)
		}
		if verdict, _ := try(t, claims.ProgramReply,
			answer(frame(ip4(node4, node4, unix.IPPROTO_TCP, l4(nodePort, clientPort))))); verdict != next {
			t.Errorf("to the host itself: verdict %d", verdict)
		}
		if n := count(t, col.Maps[claims.MapCounters], countNoRoute) - before; n != 2 {
			t.Errorf("%d counted", n)
		}
	})
	t.Run("no gateway bridge", func(t *testing.T) {
		if err := (target{}).put(col.Maps[claims.MapTarget]); err != nil {
			t.Fatal(err)
		}
		in := frame(packets[0].request)
		if verdict, out := try(t, claims.ProgramRequest, in); verdict != next || !bytes.Equal(out, in) {
			t.Errorf("verdict %d, frame %x", verdict, out)
		}
	})
}
