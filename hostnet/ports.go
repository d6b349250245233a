package hostnet

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/cluster"
	"hairpin/netdev"
	"hairpin/retry"
)

const (
	// portsPause is the time between two looks at the host's sockets: the kernel does not report a
	// socket that begins to listen.
	portsPause = time.Second
	// portsHeld is how long a port counts as used after its program or Pod has ended. No Service
	// gets it while a daemon restarts.
	portsHeld = 5 * time.Minute
	// ephemeralLooks is how many looks in a row must find a UDP socket at a port of
	// net.ipv4.ip_local_port_range: clients have sockets there for a moment.
	ephemeralLooks = 10
)

// portQuery is what FindPorts looks for.
type portQuery struct {
	addresses []netip.Addr
	ranges    cluster.PortRanges
	published []cluster.HostPort // by an earlier agent
}

// FindPorts makes scans find which of these ports the host uses at the node's own addresses.
func (l *Scanner) FindPorts(n *cluster.Node, ranges cluster.PortRanges) {
	if n != nil {
		l.asked.Store(&portQuery{n.Addresses, ranges, n.HostPorts.Used})
	}
}

// WatchPorts requests a scan when the host begins or stops to use a port, until ctx ends.
func (l *Scanner) WatchPorts(ctx context.Context) {
	var uses portUses
	failed := ""
	for ; ctx.Err() == nil; retry.Sleep(ctx, portsPause) {
		q := l.asked.Load()
		if q == nil {
			continue
		}
		found, err := uses.find(q, l.PodPorts)
		if text := errorText(err); text != failed {
			if failed = text; err != nil {
				l.log.Warn("find the ports that the host uses", "error", err)
			}
		}
		if old := l.ports.Load(); old == nil || !reflect.DeepEqual(*old, found) {
			l.ports.Store(&found)
			l.Request()
		}
	}
}

// portUses has the last use of each port, without Pod in the key; nil: nothing was found yet.
type portUses map[cluster.HostPort]*portUse

type portUse struct {
	pod   cluster.Owner
	last  time.Time
	looks int // in a row; 0: not found by the last look
	// brief reports that clients may have sockets at the port for a moment.
	brief bool
}

// find looks at the host's sockets. After an error, nothing is Checked.
func (u *portUses) find(q *portQuery, podPorts func() []cluster.HostPort) (out cluster.HostPorts, err error) {
	if len(q.ranges) == 0 {
		*u = portUses{}
		return out, nil
	}
	used, err := listeners()
	if err != nil {
		return out, err
	}
	ephemeral, err := ephemeralPorts()
	if err != nil {
		return out, err
	}
	if podPorts != nil {
		used = append(used, podPorts()...)
	}
	now, before := time.Now(), *u
	if before == nil {
		before = portUses{}
		for _, p := range q.published {
			use := &portUse{pod: p.Pod, last: now}
			p.Pod = cluster.Owner{}
			before[p] = use
		}
	}
	next := portUses{}
	for _, p := range used {
		for _, a := range q.addresses {
			if !q.ranges.Has(p.Port) || p.Address.IsValid() && p.Address != a &&
				(!p.Address.IsUnspecified() || p.Address.Is4() != a.Is4()) {
				continue
			}
			k := cluster.HostPort{Address: a, LoadBalancerPort: p.LoadBalancerPort}
			x := portUse{pod: p.Pod, last: now, looks: 1,
				brief: p.Protocol == cluster.UDP && p.Pod == (cluster.Owner{}) && ephemeral.Has(p.Port)}
			if old := before[k]; old != nil {
				x.looks, x.brief = old.looks+1, x.brief && old.brief
			}
			next[k] = &x
		}
	}
	for k, old := range before {
		if next[k] == nil && now.Sub(old.last) < portsHeld && !(old.brief && old.looks < ephemeralLooks) {
			next[k] = &portUse{pod: old.pod, last: old.last}
		}
	}
	*u = next
	out.Checked = q.ranges
	for k, x := range next {
		if !x.brief || x.looks >= ephemeralLooks {
			k.Pod = x.pod
			out.Used = append(out.Used, k)
		}
	}
	slices.SortFunc(out.Used, cluster.HostPort.Compare)
	return out, nil
}

// ephemeralPorts returns the ports that the kernel gives to clients.
func ephemeralPorts() (cluster.PortRanges, error) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return nil, fmt.Errorf("ports of clients: %w", err)
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

// sockets returns the ports of sockets in a state (sock_diag(7)).
func sockets(family uint8, protocol cluster.Protocol, state uint32) (list []cluster.HostPort, err error) {
	const requestSize, ports, messageSize, v6only = 56, 4, 72, 11 // inet_diag_req_v2, inet_diag_msg, INET_DIAG_SKV6ONLY
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
		const source = ports + 4
		a := netip.AddrFrom4([4]byte(m[source:]))
		both := false
		if family == unix.AF_INET6 {
			a = netip.AddrFrom16([16]byte(m[source:])).Unmap()
			both = a == netip.IPv6Unspecified()
			for _, x := range attrs {
				both = both && (x.Attr.Type != v6only || len(x.Value) < 1 || x.Value[0] == 0)
			}
		}
		if both {
			a = netip.Addr{}
		}
		list = append(list, cluster.HostPort{Address: a, LoadBalancerPort: cluster.LoadBalancerPort{Protocol: protocol,
			Port: binary.BigEndian.Uint16(m[ports:])}})
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
				a = netip.Addr{} // the file does not tell whether it is of IPv6 only
			}
			list = append(list, cluster.HostPort{Address: a.Unmap(), LoadBalancerPort: cluster.LoadBalancerPort{
				Protocol: cluster.SCTP, Port: uint16(n)}})
		}
	}
	return list, lines.Err()
}
