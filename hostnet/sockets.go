package hostnet

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/cluster"
	"hairpin/netdev"
)

// ephemeralPorts returns the ports that the kernel chooses for sockets without a bound port.
func ephemeralPorts() (cluster.PortRanges, error) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return nil, fmt.Errorf("ephemeral ports: %w", err)
	}
	r, err := cluster.ParsePortRange(strings.Join(strings.Fields(string(text)), "-"))
	return cluster.PortRanges{r}, err
}

// listeners returns the ports that sockets of this network namespace listen at, and the UDP ports
// of sockets without a peer.
func listeners() (list []cluster.HostPort, err error) {
	const listen, closed = 10, 7 // TCP_LISTEN, TCP_CLOSE of linux/tcp_states.h
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		for protocol, state := range map[cluster.Protocol]uint32{cluster.TCP: listen, cluster.UDP: closed} {
			found, err := sockets(family, protocol, state)
			if err != nil {
				return nil, err
			}
			list = append(list, found...)
		}
	}
	found, err := sctpListeners()
	return append(list, found...), err
}

// sockets returns the ports of sockets in a state (sock_diag(7)). The address of a socket that
// listens at all addresses of both families is invalid.
func sockets(family uint8, protocol cluster.Protocol, state uint32) (list []cluster.HostPort, err error) {
	const requestSize = 56                                 // inet_diag_req_v2
	const messageSize, portOffset, sourceOffset = 72, 4, 8 // inet_diag_msg
	const v6only = 11                                      // INET_DIAG_SKV6ONLY
	request := make([]byte, requestSize)
	request[0], request[1] = family, uint8(protocol)
	binary.NativeEndian.PutUint32(request[4:], 1<<state)
	messages, err := netdev.List(func() ([][]byte, error) {
		r := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		r.AddRawData(request)
		return r.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
	})
	if err != nil {
		return nil, fmt.Errorf("list %s sockets: %w", protocol, err)
	}
	for _, m := range messages {
		if len(m) < messageSize {
			return nil, fmt.Errorf("list %s sockets: a message of %d bytes", protocol, len(m))
		}
		attrs, err := nl.ParseRouteAttr(m[messageSize:])
		if err != nil {
			return nil, fmt.Errorf("list %s sockets: %w", protocol, err)
		}
		a := netip.AddrFrom4([4]byte(m[sourceOffset:]))
		if family == unix.AF_INET6 {
			a = netip.AddrFrom16([16]byte(m[sourceOffset:])).Unmap()
			onlyIPv6 := slices.ContainsFunc(attrs, func(x syscall.NetlinkRouteAttr) bool {
				return x.Attr.Type == v6only && len(x.Value) > 0 && x.Value[0] != 0
			})
			if a == netip.IPv6Unspecified() && !onlyIPv6 {
				a = netip.Addr{}
			}
		}
		list = append(list, cluster.HostPort{Address: a, LoadBalancerPort: cluster.LoadBalancerPort{Protocol: protocol,
			Port: binary.BigEndian.Uint16(m[portOffset:])}})
	}
	return list, nil
}

// sctpListeners reads a file that exists only if the kernel has loaded SCTP. A request by netlink
// would load it.
func sctpListeners() (list []cluster.HostPort, err error) {
	f, err := os.Open("/proc/thread-self/net/sctp/eps")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list SCTP sockets: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() { // ENDPT SOCK STY SST HBKT LPORT UID INODE LADDRS
		const state, port, first, listening = 3, 5, 8, "10"
		fields := strings.Fields(lines.Text())
		if len(fields) <= first || fields[state] != listening {
			continue
		}
		n, err := strconv.ParseUint(fields[port], 10, 16)
		if err != nil {
			return nil, fmt.Errorf("list SCTP sockets: %w", err)
		}
		for _, text := range fields[first:] {
			a, err := netip.ParseAddr(text)
			if err != nil {
				return nil, fmt.Errorf("list SCTP sockets: %w", err)
			}
			if a == netip.IPv6Unspecified() {
				a = netip.Addr{} // the file does not say whether it is of IPv6 only
			}
			list = append(list, cluster.HostPort{Address: a.Unmap(), LoadBalancerPort: cluster.LoadBalancerPort{
				Protocol: cluster.SCTP, Port: uint16(n)}})
		}
	}
	return list, lines.Err()
}
