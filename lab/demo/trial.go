package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/lab"
)

// Trial tests what the matrix's single small requests do not show: fragments, path MTU, ICMP
// errors, and clients that choose the same port.
type Trial struct {
	Name  string
	Not   []Exception
	Group string // see Attack.Group
	try   func(ctx context.Context, w *world) (note string, err error)
}

// Exception says in which labs a trial is not tried, and why.
type Exception struct {
	In  labs
	Why string
}

// labs are the labs with a property.
type labs struct {
	name string
	has  func(w *world) bool
}

var (
	onUserspace = labs{"userspace datapath", func(w *world) bool { return w.userspace }}
	onKernel    = labs{"kernel datapath", func(w *world) bool { return !w.userspace }}
	onKernel61  = labs{"Debian's kernel 6.1", onKernel.has} // the kernel with which the kernel datapath is tried
	inShared    = labs{"mode shared", func(w *world) bool { return w.shared }}
	inOthers    = labs{"modes local and detached", func(w *world) bool { return !w.shared }}
	inDetached  = labs{"mode detached", func(w *world) bool { return w.detached }}
	onUplink    = labs{"modes shared and local", func(w *world) bool { return !w.detached }}
	withFlows   = labs{"`service-engine = openflow`", func(w *world) bool { return w.openflow }}
	withOVN     = labs{"`service-engine = ovn`", func(w *world) bool { return !w.openflow }}
	withEBPF    = labs{"`nodeport-path = redirect`", func(w *world) bool { return w.redirect }}
	withDGP     = labs{"`node-local = dgp`", func(w *world) bool { return w.nodeLocal }}
	before4     = labs{"Open vSwitch before 4.0", func(w *world) bool { return w.before("4.0") }}
)

// and returns the labs with all of the properties.
func (l labs) and(more ...labs) labs {
	for _, m := range more {
		first := l
		l = labs{first.name + ", " + m.name, func(w *world) bool { return first.has(w) && m.has(w) }}
	}
	return l
}

type trialResult struct {
	name, otherwise, note string
	millis                float64
	err                   error
}

// Trials returns all trials, in their order.
func Trials() []Trial {
	list := fragmentTrials()
	list = append(list, errorTrials()...)
	list = append(list, clashTrials()...)
	list = append(list, externalTrials()...)
	list = append(list, policyTrials()...)
	list = append(list, mtuTrials()...) // last, because machines remember the MTU of a path
	return append(list, pathTrials()...)
}

func (w *world) runTrials(ctx context.Context, trials []Trial, t *table) error {
	return inGroups(ctx, trials, func(x Trial) string { return x.Group }, func(x Trial) trialResult {
		r := trialResult{name: x.Name, otherwise: w.exception(x)}
		begin := time.Now()
		if r.otherwise == "" {
			r.note, r.err = x.try(ctx, w)
		}
		r.millis = float64(time.Since(begin).Microseconds()) / 1000
		return r
	}, t.trial)
}

// exception returns why a trial is not tried in this lab, or "".
func (w *world) exception(x Trial) string {
	if i := slices.IndexFunc(x.Not, func(e Exception) bool { return e.In.has(w) }); i >= 0 && !w.every {
		return x.Not[i].Why
	}
	return ""
}

// before reports whether the lab's Open vSwitch is older than a version.
func (w *world) before(version string) bool {
	return slices.CompareFunc(strings.Split(w.openvswitch, "."), strings.Split(version, "."), func(a, b string) int {
		x, _ := strconv.Atoi(a)
		y, _ := strconv.Atoi(b)
		return x - y
	}) < 0
}

// switchVersion returns the version of Open vSwitch, such as "3.5.0".
func switchVersion(ctx context.Context, n *lab.Node) (string, error) {
	text, err := n.Exec(ctx, "ovs-vswitchd", "--version") // ovs-vswitchd (Open vSwitch) 3.5.0
	if err != nil {
		return "", err
	}
	f := strings.Fields(text)
	if len(f) < 4 {
		return "", fmt.Errorf("ovs-vswitchd --version says %q", text)
	}
	return f[3], nil
}

// way is a path: a client, a Service or machine, and the address used.
type way struct{ from, to, path string }

func (x way) name(group, protocol string) string {
	return strings.Join([]string{group, x.from, x.to, x.path, protocol}, " ")
}

func (w *world) wayTo(x way, f family) (netip.AddrPort, error) {
	return w.target(Case{To: x.to, Path: x.path}, f)
}

// dialWay opens a socket at the client of a path, connected to its destination.
func (w *world) dialWay(ctx context.Context, x way, protocol string, f family, options ...option) (net.Conn, error) {
	to, err := w.wayTo(x, f)
	if err != nil {
		return nil, err
	}
	return w.dial(ctx, x.from, protocol, f, netip.AddrPort{}, to, options...)
}

// option is a socket option with an integer value.
type option struct{ level, name, value int }

// dial opens a socket in a place; local may be zero, or have only an address or only a port.
func (w *world) dial(ctx context.Context, from, protocol string, f family, local, to netip.AddrPort,
	options ...option) (net.Conn, error) {
	place, ok := w.endpoints[from]
	if !ok {
		return nil, fmt.Errorf("the lab has no %q", from)
	}
	d := net.Dialer{Timeout: w.longer(3 * time.Second), KeepAlive: -1,
		Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			outer := c.Control(func(fd uintptr) {
				for _, o := range options {
					err = errors.Join(err, unix.SetsockoptInt(int(fd), o.level, o.name, o.value))
				}
			})
			return errors.Join(outer, err)
		}}
	if !local.Addr().IsValid() && local.Port() != 0 {
		local = netip.AddrPortFrom(unspecified(f), local.Port())
	}
	if local.IsValid() {
		if d.LocalAddr = net.Addr(net.TCPAddrFromAddrPort(local)); protocol == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(local)
		}
	}
	var conn net.Conn
	err := lab.Do(place.place, func() (err error) {
		conn, err = d.DialContext(ctx, protocol+f.name, to.String())
		return err
	})
	return conn, err
}

func unspecified(f family) netip.Addr {
	if f.name == "4" {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func (w *world) longer(t time.Duration) time.Duration { return longer(t, w.slow) }

// headers returns the length of the IP and UDP headers.
func headers(f family) int {
	if f.name == "4" {
		return 28
	}
	return 48
}

// exchange sends a datagram of send bytes and expects one of want bytes, and that all arrived. It
// repeats a lost datagram, as UDP clients do: the first may exceed a path MTU not yet known. It
// returns the number of tries.
func (w *world) exchange(conn net.Conn, send, want int) (int, error) {
	request := make([]byte, send)
	copy(request, fmt.Sprintf("want %d", want))
	var last error
	end := time.Now().Add(w.longer(5 * time.Second))
	for n := 1; ; n++ {
		got, err := w.once(conn, request)
		switch {
		case err != nil:
			last = err
		case !strings.HasPrefix(string(got), fmt.Sprintf("got %d", send)) ||
			len(got) != want: // perhaps the reply to an earlier request
			last = fmt.Errorf("%d bytes came, %.12q", len(got), got)
		default:
			return n, nil
		}
		if time.Now().After(end) {
			return n, fmt.Errorf("sent %d bytes and asked for %d, %d times: %w", send, want, n, last)
		}
	}
}

// patience returns the time limit of a datagram's reply. What must not arrive is awaited as long.
// Where everything is 15 times slower, of 749 replies 90 % took 0.3 s at most.
func (w *world) patience() time.Duration { return min(w.longer(500*time.Millisecond), 5*time.Second) }

func (w *world) once(conn net.Conn, request []byte) ([]byte, error) {
	return within(conn, request, w.patience())
}

// within sends a datagram and returns the reply.
func within(conn net.Conn, request []byte, limit time.Duration) ([]byte, error) {
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(request); err != nil {
		return nil, err
	}
	return receive(conn)
}

func receive(conn net.Conn) ([]byte, error) {
	buf := make([]byte, 65536)
	n, err := conn.Read(buf)
	return buf[:n], err
}

// triesNote returns the note of a trial that needed more than one try.
func triesNote(n int) string {
	if n > 1 {
		return fmt.Sprintf("(%d tries)", n)
	}
	return ""
}

// Known limits with fragments.
const (
	userspaceFragments = "conntrack of Open vSwitch before 3.7 cannot translate fragments"
	sharedFragments    = "fragments of another node's host exceed the pods' MTU, and no ICMP error reports that to it"
	hostReports        = "the host's routes to all Services have the pods' MTU"
	forwardedIPv6      = "Linux forwards IPv6 by the MTU of the link, and reports the pods' MTU to the endpoint's host"
	reportedByHost     = "the host reports the pods' MTU to the hosts of other nodes, too"
	sharedMTU          = "the kernel has one path MTU for a host's packets and for its tunnel to the same node"
)

// fragmentTrials returns trials of datagrams that must be fragmented, in both directions.
func fragmentTrials() []Trial {
	const a, b = "NodePort node-a", "NodePort node-b"
	var list []Trial
	for _, x := range []way{
		{"host-a", "podlocal", "ClusterIP"}, {"host-a", "podremote", "ClusterIP"}, {"host-a", "hostself", "ClusterIP"},
		{"host-a", "hostother", "ClusterIP"},
		{"pod-a2", "podlocal", "ClusterIP"}, {"pod-a2", "podremote", "ClusterIP"}, {"pod-a2", "hostself", "ClusterIP"},
		{"pod-a2", "hostother", "ClusterIP"}, {"pod-a2", "web", "ClusterIP"},
		{"client", "podlocal", a}, {"client", "podremote", a}, {"client", "keeppod", a}, {"client", "hostself", a},
		{"client", "keephost", a}, {"client", "hostother", a},
		{"host-a", "podlocal", a}, {"host-a", "podlocal", b}, {"pod-a2", "podremote", b},
		{"pod-a2", "pod-c1", "direct"}, {"pod-a2", "host-b", "direct"}, {"pod-a2", "client", "direct"},
		{"host-a", "pod-c1", "direct"},
	} {
		for _, f := range families() {
			t := Trial{Name: x.name("fragments", "udp"+f.name),
				try: func(ctx context.Context, w *world) (string, error) { return w.fragments(ctx, x, f) }}
			not := func(in labs, why string) { t.Not = append(t.Not, Exception{in, why}) }
			// The server is another node's host. It learns the pods' MTU over IPv6 only.
			between := x.to + x.path
			switch other := between == "hostotherClusterIP" || between == "host-bdirect"; {
			case other && x.from == "pod-a2" && f.name == "6":
				not(onUserspace, userspacePTB)
			case other && x.from == "pod-a2", x.from == "host-a" && x.path == b && f.name == "4":
				not(inShared, sharedFragments)
			case other && f.name == "6": // with dgp, the host uses the path of a pod
				not(onUserspace.and(inShared, withDGP), userspacePTB)
			case other:
				not(onKernel.and(inShared, withDGP), sharedFragments)
			}
			if x.path != "direct" || !strings.HasPrefix(x.to, "pod") {
				not(onUserspace.and(before4), userspaceFragments)
			}
			list = append(list, t)
		}
	}
	return list
}

func (w *world) fragments(ctx context.Context, x way, f family) (string, error) {
	conn, err := w.dialWay(ctx, x, "udp", f)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	most := 0
	for _, size := range [][2]int{{4000, 10}, {10, 9000}, {20000, 20000}} {
		n, err := w.exchange(conn, size[0], size[1])
		if err != nil {
			return "", err
		}
		most = max(most, n)
	}
	return triesNote(most), nil
}
