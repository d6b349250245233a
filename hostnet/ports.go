package hostnet

import (
	"context"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"hairpin/cluster"
	"hairpin/retry"
)

const (
	// portsInterval is the time between two polls of the host's sockets: the kernel does not report
	// a socket that begins to listen.
	portsInterval = time.Second
	// portHoldTime is how long a port counts as used after its program or Pod has ended. No Service
	// gets it while a daemon restarts.
	portHoldTime = 5 * time.Minute
	// ephemeralPolls is how many polls in a row must find a UDP socket at an ephemeral port
	// (net.ipv4.ip_local_port_range): clients have sockets there for a moment.
	ephemeralPolls = 10
)

// portQuery is what FindPorts requests.
type portQuery struct {
	addresses []netip.Addr
	ranges    cluster.PortRanges
	published []cluster.HostPort // by an earlier agent
}

// FindPorts makes WatchPorts find which ports of these ranges the host uses at the node's own
// addresses.
func (sc *Scanner) FindPorts(n *cluster.Node, ranges cluster.PortRanges) {
	if n != nil {
		sc.portQuery.Store(&portQuery{n.Addresses, ranges, n.HostPorts.Used})
	}
}

// WatchPorts polls the host's sockets, and requests a scan when the used ports change, until ctx
// ends.
func (sc *Scanner) WatchPorts(ctx context.Context) {
	var uses portUses
	var lastErr retry.LastError
	for ; ctx.Err() == nil; retry.Sleep(ctx, portsInterval) {
		q := sc.portQuery.Load()
		if q == nil {
			continue
		}
		found, err := uses.poll(q, sc.PodPorts)
		lastErr.Warn(sc.log, "find the ports that the host uses", err)
		if old := sc.ports.Load(); old == nil || !reflect.DeepEqual(*old, found) {
			sc.ports.Store(&found)
			sc.Request()
		}
	}
}

// portUses has the last use of each port. The keys have no Pod; nil: there was no poll yet.
type portUses map[cluster.HostPort]*portUse

type portUse struct {
	pod   cluster.Owner
	last  time.Time // when a poll last found it
	polls int       // number of polls that found it, in a row; 0: it is not used, but held for portHoldTime
	// ephemeral means that every poll found a UDP socket at an ephemeral port.
	ephemeral bool
}

// counts reports whether the port counts as used: not if it may be a client's, for a moment.
func (u *portUse) counts() bool { return !u.ephemeral || u.polls >= ephemeralPolls }

// poll lists the host's sockets and the hostPorts of pods, and returns the ports that count as
// used. After an error, it reports no range as Checked.
func (u *portUses) poll(q *portQuery, podPorts func() []cluster.HostPort) (out cluster.HostPorts, err error) {
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
		before = usesOf(q.published, now)
	}
	next := portUses{}
	for _, p := range used {
		for _, a := range q.addresses {
			if !q.ranges.Has(p.Port) || !listensAt(p.Address, a) {
				continue
			}
			k := cluster.HostPort{Address: a, LoadBalancerPort: p.LoadBalancerPort}
			use := portUse{pod: p.Pod, last: now, polls: 1,
				ephemeral: p.Protocol == cluster.UDP && p.Pod == (cluster.Owner{}) && ephemeral.Has(p.Port)}
			if old := before[k]; old != nil {
				use.polls, use.ephemeral = old.polls+1, use.ephemeral && old.ephemeral
			}
			next[k] = &use
		}
	}
	for k, old := range before {
		if next[k] == nil && now.Sub(old.last) < portHoldTime && old.counts() {
			next[k] = &portUse{pod: old.pod, last: old.last}
		}
	}
	*u = next
	out.Checked = q.ranges
	for port, use := range next {
		if use.counts() {
			port.Pod = use.pod
			out.Used = append(out.Used, port)
		}
	}
	slices.SortFunc(out.Used, cluster.HostPort.Compare)
	return out, nil
}

// usesOf returns the uses that an earlier agent published, as if a poll had found them just now.
func usesOf(published []cluster.HostPort, now time.Time) portUses {
	uses := portUses{}
	for _, p := range published {
		use := &portUse{pod: p.Pod, last: now}
		p.Pod = cluster.Owner{}
		uses[p] = use
	}
	return uses
}

// listensAt reports whether a socket with a local address, which is invalid if it listens at all
// addresses of both families, receives what is sent to an address.
func listensAt(local, a netip.Addr) bool {
	return !local.IsValid() || local == a || local.IsUnspecified() && local.Is4() == a.Is4()
}
