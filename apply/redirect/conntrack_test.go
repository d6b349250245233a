package redirect

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/claims"
)

// The host masquerades pod4 and pod6. They are the host's own, so that sockets can bind them.
var pod4, pod6 = netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("fd00:10:244:1::3")

const links = `link set lo up
link add nic type veth peer name wire
addr add 192.0.2.2/24 dev nic
addr add 2001:db8:1::2/64 dev nic nodad
addr add 10.244.1.3/32 dev lo
addr add fd00:10:244:1::3/128 dev lo nodad
link set wire up
link set nic up
neigh add 192.0.2.100 lladdr 02:00:00:00:00:64 dev nic nud permanent
neigh add 192.0.2.101 lladdr 02:00:00:00:00:65 dev nic nud permanent
neigh add 2001:db8:1::100 lladdr 02:00:00:00:00:64 dev nic nud permanent
neigh add 2001:db8:1::101 lladdr 02:00:00:00:00:65 dev nic nud permanent
`

const masquerade = `table inet t {
	chain c {
		type nat hook postrouting priority srcnat
		ip saddr 10.244.1.3 masquerade
		ip6 saddr fd00:10:244:1::3 masquerade
	}
}
`

// fromNodePort makes a namespace in which the host and a pod began connections from the NodePort.
func fromNodePort(t testing.TB) (ns string) {
	t.Helper()
	ns = insidetest.NetNS(t)
	if err := inside.Do(ns, func() error {
		for stdin, args := range map[string][]string{links: {"ip", "-batch", "-"}, masquerade: {"nft", "-f", "-"}} {
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Stdin = strings.NewReader(stdin)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%q: %w: %s", args, err, out)
			}
		}
		for from, to := range map[netip.Addr]netip.Addr{
			node4: client4, node6: client6, pod4: client4.Next(), pod6: client6.Next(),
		} {
			for _, kind := range []int{unix.SOCK_DGRAM, unix.SOCK_STREAM} {
				if err := begin(t, kind, from, to); err != nil {
					return fmt.Errorf("%s to %s: %w", from, to, err)
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return ns
}

// begin sends the first packet of a connection. There is no reply.
func begin(t testing.TB, kind int, from, to netip.Addr) error {
	family := unix.AF_INET
	if from.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, sockaddr(from, nodePort)); err != nil {
		return err
	}
	if err := unix.Connect(fd, sockaddr(to, clientPort)); kind == unix.SOCK_STREAM && err == unix.EINPROGRESS {
		return nil
	} else if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte("x"))
	return err
}

// flags sets the flags of a TCP header.
func flags(l4 []byte, flags byte) []byte {
	l4[13] = flags
	return l4
}

func sockaddr(a netip.Addr, port int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: port, Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Port: port, Addr: a.As16()}
}

// TestReplies checks that replies are left to the host if the host or a pod began the connection
// from a Service's port. Packets of clients to the same port are redirected.
func TestReplies(t *testing.T) {
	col := load(t) // slow in an emulator: the connections would expire meanwhile
	ns := fromNodePort(t)
	if err := bridgeTarget.put(col.Maps[claims.MapTarget]); err != nil {
		t.Fatal(err)
	}
	const ack, fin, syn = tcpACK, 1, tcpSYN
	for _, family := range []struct {
		name         string
		node, client netip.Addr
		icmp         byte
		wrap         func(src, dst netip.Addr, protocol byte, payload []byte) []byte
	}{
		{"IPv4", node4, client4, unix.IPPROTO_ICMP, func(src, dst netip.Addr, p byte, payload []byte) []byte {
			return ip4(src, dst, p, payload)
		}},
		{"IPv6", node6, client6, unix.IPPROTO_ICMPV6, ip6},
	} {
		unreachable := map[byte][2]byte{unix.IPPROTO_ICMP: {3, 3}, unix.IPPROTO_ICMPV6: {1, 4}}[family.icmp]
		for _, server := range []struct {
			of      string
			address netip.Addr
		}{{"the host", family.client}, {"a pod", family.client.Next()}} {
			packet := func(protocol byte, from uint16, bits byte) []byte {
				return family.wrap(server.address, family.node, protocol, flags(l4(from, nodePort), bits))
			}
			refusal := func(protocol byte, to uint16) []byte {
				sent := family.wrap(family.node, server.address, protocol, l4(nodePort, to)[:8])
				return family.wrap(server.address, family.node, family.icmp, icmp(unreachable[0], unreachable[1], sent))
			}
			for _, x := range []struct {
				name   string
				packet []byte
				want   int32
			}{
				{"UDP", packet(unix.IPPROTO_UDP, clientPort, 0), next},
				{"UDP of a client", packet(unix.IPPROTO_UDP, clientPort+1, 0), redirected},
				{"TCP SYN ACK", packet(unix.IPPROTO_TCP, clientPort, syn|ack), next},
				{"TCP ACK", packet(unix.IPPROTO_TCP, clientPort, ack), next},
				{"TCP FIN", packet(unix.IPPROTO_TCP, clientPort, fin|ack), next},
				{"TCP SYN", packet(unix.IPPROTO_TCP, clientPort, syn), redirected},
				{"TCP ACK of a client", packet(unix.IPPROTO_TCP, clientPort+1, ack), redirected},
				{"an error about UDP", refusal(unix.IPPROTO_UDP, clientPort), next},
				{"an error about TCP", refusal(unix.IPPROTO_TCP, clientPort), next},
				{"an error about UDP of a Service", refusal(unix.IPPROTO_UDP, clientPort+1), redirected},
				{"an error about TCP of a Service", refusal(unix.IPPROTO_TCP, clientPort+1), redirected},
			} {
				t.Run(family.name+" "+server.of+" "+x.name, func(t *testing.T) {
					if err := inside.Do(ns, func() error {
						verdict, _, err := col.Programs[claims.ProgramRequest].Test(frame(x.packet))
						if err == nil && int32(verdict) != x.want {
							t.Errorf("verdict %d, want %d", int32(verdict), x.want)
						}
						return err
					}); err != nil {
						t.Fatal(err)
					}
				})
			}
		}
	}
}

// BenchmarkRequest measures the request program, with and without the conntrack lookup.
func BenchmarkRequest(b *testing.B) {
	ns := fromNodePort(b)
	for name, ct := range map[string]bool{"without conntrack": false, "with conntrack": true} {
		col := load(b)
		program := col.Programs[claims.ProgramRequest]
		if !ct {
			spec := &ebpf.CollectionSpec{Maps: mapSpecs(), Programs: programs()}
			other, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: col.Maps})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(other.Close)
			program = other.Programs[claims.ProgramRequest]
		}
		if err := bridgeTarget.put(col.Maps[claims.MapTarget]); err != nil {
			b.Fatal(err)
		}
		for packet, in := range map[string][]byte{
			"SYN of a client":   ip4(client4, node4, unix.IPPROTO_TCP, flags(l4(clientPort+1, nodePort), tcpSYN)),
			"ACK of a client":   ip4(client4, node4, unix.IPPROTO_TCP, flags(l4(clientPort+1, nodePort), tcpACK)),
			"reply to the host": ip4(client4, node4, unix.IPPROTO_TCP, flags(l4(clientPort, nodePort), tcpACK)),
			"another port":      ip4(client4, node4, unix.IPPROTO_TCP, flags(l4(clientPort, 22), tcpACK)),
		} {
			b.Run(packet+" "+name, func(b *testing.B) {
				if err := inside.Do(ns, func() error {
					_, each, err := program.Benchmark(frame(in), b.N, b.ResetTimer)
					b.ReportMetric(float64(each.Nanoseconds()), "ns/packet")
					return err
				}); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}
