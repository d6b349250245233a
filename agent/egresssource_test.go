package agent_test

import (
	bits "encoding/binary"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
)

var (
	egressSteps = flag.Int("egress.steps", 6, "changes in TestNeverTheWrongSource")
	egressSeed  = flag.Uint64("egress.seed", 0, "of TestNeverTheWrongSource; 0 = a new one")
	egressMode  = flag.String("egress.mode", "",
		"gateway mode in TestNeverTheWrongSource, where it is by the seed when empty, and "+
			"TestEgressIPOtherNetworks, where it is each")
)

// The destination of pods: an address behind the client, which both networks lead to. Each pod has
// a port of its own, which identifies a packet without a reply.
var farServers = map[cluster.Family]netip.Addr{cluster.IPv4: netip.MustParseAddr("192.0.2.9"),
	cluster.IPv6: netip.MustParseAddr("2001:db8:9::9")}

const (
	firstPort  = 9001
	markerPort = 20000
)

var families = []cluster.Family{cluster.IPv4, cluster.IPv6}

// recorder reads every frame that arrives at the external machine.
type recorder struct {
	mu      sync.Mutex
	allowed map[string]map[netip.Addr]bool // by pod and family
	right   map[string]int                 // correct packets since the last settling
	begun   map[begun]string               // the step of the last correct first packet
	late    []string                       // resets of connections with an earlier address
	wrong   []string
	packets int
	marker  int
	step    string
}

func slot(pod string, f cluster.Family) string { return pod + " " + f.String() }

// begun is a TCP connection, as seen outside.
type begun struct {
	pod  string // and family
	from netip.AddrPort
}

// frame checks one frame.
func (r *recorder) frame(b []byte, pods []string) {
	if len(b) < 14+20 {
		return
	}
	var src, dst netip.Addr
	var at int
	var protocol byte
	switch kind := bits.BigEndian.Uint16(b[12:]); {
	case kind == unix.ETH_P_IP:
		src, dst, at, protocol = netip.AddrFrom4([4]byte(b[26:30])), netip.AddrFrom4([4]byte(b[30:34])), 14+
			4*int(b[14]&15), b[23]
	case kind == unix.ETH_P_IPV6 && len(b) >= 14+40:
		src, dst, at, protocol = netip.AddrFrom16([16]byte(b[22:38])), netip.AddrFrom16([16]byte(b[38:54])), 14+40,
			b[20]
	default:
		return
	}
	if len(b) < at+4 || protocol != unix.IPPROTO_TCP && protocol != unix.IPPROTO_UDP { // no ports
		return
	}
	port := int(bits.BigEndian.Uint16(b[at+2:]))
	r.mu.Lock()
	defer r.mu.Unlock()
	if port >= markerPort && dst.IsLoopback() {
		r.marker = max(r.marker, port-markerPort)
	}
	for _, inside := range []string{"10.244.0.0/16", "100.64.0.0/10", "169.254.169.0/29", "fd00:10:244::/48",
		"fd97::/64", "fd98::/64", "fd69::/125"} {
		if netip.MustParsePrefix(inside).Contains(src) {
			r.wrong = append(r.wrong, fmt.Sprintf("%s: %s was seen outside, asking for %s port %d", r.step, src, dst,
				port))
		}
	}
	f := cluster.FamilyOf(src)
	if dst != farServers[f] || port < firstPort || port >= firstPort+len(pods) {
		return
	}
	r.packets++
	k := slot(pods[port-firstPort], f)
	flags := byte(0)
	if protocol == unix.IPPROTO_TCP && len(b) >= at+14 {
		flags = b[at+13]
	}
	const first, reset = 2, 4
	c := begun{k, netip.AddrPortFrom(src, bits.BigEndian.Uint16(b[at:]))}
	if before, was := r.begun[c]; flags&reset != 0 && !r.allowed[k][src] && was {
		// An earlier connection keeps its address, and the server retransmits to it once more.
		r.late = append(r.late, fmt.Sprintf("%s: %s is seen as %s, flags %#x, of a connection begun in: %s", r.step, k,
			c.from, flags, before))
		return
	}
	if flags&first != 0 && r.allowed[k][src] {
		r.begun[c] = r.step
	}
	if !r.allowed[k][src] {
		r.wrong = append(r.wrong, fmt.Sprintf("%s: %s is seen as %s, and may be seen as %v; protocol %d, TCP flags %#x",
			r.step, k, src, slices.SortedFunc(keys(r.allowed[k]), netip.Addr.Compare), protocol, flags))
		return
	}
	r.right[k]++
}

// listen reads frames in a host until stop is closed.
func (r *recorder) listen(t *testing.T, h *lab.Host, pods []string, stop chan struct{}) (done chan struct{}) {
	t.Helper()
	fd := -1
	err := h.Do(func() (err error) {
		const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
		return err
	})
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
	}
	if err != nil {
		t.Fatal(err)
	}
	done = make(chan struct{})
	go func() {
		defer close(done)
		defer unix.Close(fd)
		b := make([]byte, 4096)
		for {
			select {
			case <-stop:
				return
			default:
			}
			n, from, err := unix.Recvfrom(fd, b, 0)
			if at, ok := from.(*unix.SockaddrLinklayer); err == nil && ok && at.Pkttype != unix.PACKET_OUTGOING {
				r.frame(b[:n], pods)
			}
		}
	}()
	return done
}

// sender is a pod that sends repeatedly, each time from another port: a new connection.
type sender struct {
	pod   string
	port  uint16
	place atomic.Pointer[lab.Place] // nil: the pod does not exist
	turn  atomic.Int64              // of the barrier, after which it has made a complete exchange
}

func (s *sender) run(t *testing.T, turn *atomic.Int64, stop chan struct{}) {
	from := uint16(30000)
	for {
		select {
		case <-stop:
			return
		case <-time.After(10 * time.Millisecond):
		}
		now, place := turn.Load(), s.place.Load()
		if place == nil {
			s.turn.Store(now)
			continue
		}
		for i, protocol := range []string{"udp", "tcp", "tcp", "udp"} {
			if from++; from < 30000 {
				from = 30000
			}
			lab.Get(t.Context(), *place, probe.Request{
				Protocol: protocol, To: netip.AddrPortFrom(farServers[families[i%2]], s.port), Port: from,
				Timeout: 250 * time.Millisecond,
			})
		}
		s.turn.Store(now)
	}
}

// sources is the state of TestNeverTheWrongSource.
type sources struct {
	t       *testing.T
	l       *lab.Lab
	w       *egressWorld
	rec     *recorder
	senders []*sender
	turn    atomic.Int64
}

// TestNeverTheWrongSource: while EgressIPs, pods, namespaces, labels and nodes change and daemons
// are killed, an external machine records the source of every packet. A pod with an address is seen
// with it, or not at all. While something changes, the former source is allowed, too. No address of
// the cluster's own networks is ever seen.
func TestNeverTheWrongSource(t *testing.T) {
	seed := *egressSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	r := rand.New(rand.NewPCG(seed, 0))
	mode := []string{cluster.ModeShared, cluster.ModeLocal, cluster.ModeDetached}[r.IntN(3)]
	if *egressMode != "" && *egressMode != "all" {
		mode = *egressMode
	}
	t.Logf("again: -egress.seed=%d -egress.mode=%s -egress.steps=%d", seed, mode, *egressSteps)
	x := startSources(t, mode)
	for range *egressSteps {
		x.step(r)
		if t.Failed() {
			return
		}
	}
	t.Logf("mode %s: %d packets in %d steps, all from where they may come; %d late resets:\n%s", mode, x.rec.packets,
		x.w.step, len(x.rec.late), strings.Join(x.rec.late, "\n"))
}

func startSources(t *testing.T, mode string) *sources {
	t.Helper()
	t.Parallel()
	l := startDemoIn(t, mode)
	secondWire(t, l)
	client, wire := l.Host("client"), l.Host("underlay")
	for _, c := range []struct {
		on     *lab.Host
		script string
	}{
		{wire,
			"sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; ip route add 192.0.2.0/24 via " +
				"172.18.0.100; ip route add 2001:db8:9::/64 via fc00:f853:ccd::64"},
		{client,
			"nft 'add table inet ports { chain in { type nat hook prerouting priority -100; tcp dport 9001-9020 " +
				"redirect to :9000; udp dport 9001-9020 redirect to :9000; }; }'"},
	} {
		if _, err := c.on.Exec(t.Context(), "sh", "-ec", c.script); err != nil {
			t.Fatal(err)
		}
	}
	x := &sources{t: t, l: l, w: newEgressWorld(t, l),
		rec: &recorder{right: map[string]int{}, begun: map[begun]string{}, step: "before"}}
	pods := slices.Sorted(keys(x.w.at))
	stop, done := make(chan struct{}), sync.WaitGroup{}
	x.rec.allowed = x.allowed()
	listening := x.rec.listen(t, client, pods, stop)
	for i, name := range pods {
		s := &sender{pod: name, port: uint16(firstPort + i)}
		x.senders = append(x.senders, s)
		x.arrives(s)
		done.Go(func() { s.run(t, &x.turn, stop) })
	}
	t.Cleanup(func() { close(stop); done.Wait(); <-listening })
	x.become("begins")
	return x
}

// arrives sets a sender's pod, if it exists.
func (x *sources) arrives(s *sender) {
	for _, p := range x.l.Node(x.w.at[s.pod]).Pods() {
		if p.Name() == s.pod {
			place := lab.Place(p)
			s.place.Store(&place)
		}
	}
}

func (x *sources) allowed() map[string]map[netip.Addr]bool {
	out := map[string]map[netip.Addr]bool{}
	for p := range x.w.at {
		for _, f := range families {
			out[slot(p, f)] = x.w.allowed(p, f)
		}
	}
	return out
}

// step makes one change, or kills something.
func (x *sources) step(r *rand.Rand) {
	nodes := x.l.Nodes()
	n := nodes[r.IntN(len(nodes))]
	switch r.IntN(6) {
	case 0:
		names := []string{lab.NB, lab.SB, lab.Northd, lab.Controller, lab.VSwitchd, agent}
		name := names[r.IntN(len(names))]
		x.become("kills " + name + " of " + n.Name())
		x.kill(n, name)
		x.become(name + " of " + n.Name() + " is back")
	case 1:
		s := x.senders[r.IntN(len(x.senders))]
		x.replace(s)
	case 2: // in the middle of a change
		what := x.w.change(r)
		done := make(chan struct{})
		go func() {
			defer close(done)
			x.kill(n, lab.Controller)
		}()
		x.become(what + ", while " + lab.Controller + " of " + n.Name() + " is killed")
		<-done
	default:
		x.become(x.w.change(r))
	}
}

func (x *sources) kill(n *lab.Node, name string) {
	err := n.Kill(x.t.Context(), name, syscall.SIGKILL)
	if err == nil {
		err = n.Start(x.t.Context(), name)
	}
	if err != nil {
		x.t.Error(err)
	}
}

// replace deletes a pod and makes it again, perhaps with another address.
func (x *sources) replace(s *sender) {
	n := x.l.Node(x.w.at[s.pod])
	s.place.Store(nil)
	x.barrier()
	for _, p := range n.Pods() {
		if p.Name() == s.pod {
			if err := p.Delete(x.t.Context()); err != nil {
				x.t.Fatal(err)
			}
		}
	}
	delete(x.w.ips, s.pod)
	x.become(s.pod + " is gone")
	p, err := n.AddPod(x.t.Context(), lab.PodConfig{Namespace: "default", Name: s.pod,
		UID: fmt.Sprintf("uid-%s-%d", s.pod, x.w.step)})
	if err != nil {
		x.t.Fatal(err)
	}
	x.w.ips[s.pod] = p.IPs()
	x.arrives(s)
	x.become(fmt.Sprintf("%s is back with %v", s.pod, p.IPs()))
}

// become writes the objects and waits until every node has applied them. Until then, the sources
// that were allowed before are, too.
func (x *sources) become(what string) {
	x.t.Helper()
	x.w.step++
	text := x.w.decide(x.t)
	now := x.allowed()
	x.rec.mu.Lock()
	x.rec.step = fmt.Sprintf("step %d (%s)", x.w.step, what)
	both := map[string]map[netip.Addr]bool{}
	for k := range now {
		both[k] = maps.Clone(now[k])
		maps.Copy(both[k], x.rec.allowed[k])
	}
	x.rec.allowed = both
	x.rec.mu.Unlock()
	x.t.Logf("%d: %s; %v", x.w.step, what, x.w.assigned)
	x.w.write(x.t, "nodes.yaml", x.w.nodesText())
	x.w.write(x.t, "pods.yaml", x.w.podsText())
	x.w.write(x.t, "egress.yaml", text)
	x.settle()
	x.rec.mu.Lock()
	x.rec.allowed, x.rec.right = now, map[string]int{}
	x.rec.step += " settled"
	x.rec.mu.Unlock()
	eventually(x.t, 30*time.Second, "every pod is seen", func() (bool, string) {
		x.rec.mu.Lock()
		defer x.rec.mu.Unlock()
		for _, s := range x.senders {
			for _, f := range families {
				if k := slot(s.pod, f); s.place.Load() != nil && x.rec.right[k] < 2 {
					return len(x.rec.wrong) > 0, k + " is not seen"
				}
			}
		}
		return true, ""
	})
	x.rec.mu.Lock()
	defer x.rec.mu.Unlock()
	if len(x.rec.wrong) > 0 {
		x.t.Errorf("%d packets from the wrong source:\n%s", len(x.rec.wrong),
			strings.Join(x.rec.wrong[:min(len(x.rec.wrong), 20)], "\n"))
	}
}

// settle waits until every node has applied the objects, in the switch, too, and until every packet
// that was sent before is recorded.
func (x *sources) settle() {
	x.t.Helper()
	var wg sync.WaitGroup
	for _, n := range x.l.Nodes() {
		eventually(x.t, 40*time.Second, n.Name()+" has read "+x.w.marker(), func() (bool, string) {
			r, err := reportOf(x.t.Context(), n)
			if err != nil {
				return false, err.Error()
			}
			if all := strings.Join(r.Problems, "\n"); !strings.Contains(all, x.w.marker()) {
				return false, all
			}
			return well(x.t.Context(), n)
		})
		wg.Go(func() {
			if out, err := n.Exec(x.t.Context(), "sh", "-ec",
				"ovn-nbctl --timeout=30 --wait=hv sync; ovs-appctl -T 30 revalidator/wait"); err != nil {
				x.t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	x.barrier()
	eventually(x.t, 20*time.Second, "all frames are recorded", func() (bool, string) {
		lab.Get(x.t.Context(), x.l.Host("client"), probe.Request{
			Protocol: "udp", To: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}),
				uint16(markerPort+x.w.step)), Timeout: 20 * time.Millisecond,
		})
		x.rec.mu.Lock()
		defer x.rec.mu.Unlock()
		return x.rec.marker >= x.w.step, ""
	})
}

// barrier waits until all exchanges that began before have ended.
func (x *sources) barrier() {
	x.t.Helper()
	turn := x.turn.Add(1)
	for _, s := range x.senders {
		eventually(x.t, 30*time.Second, s.pod+" asks", func() (bool, string) { return s.turn.Load() >= turn, "" })
	}
}
