package agent_test

import (
	bits "encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/attack"
	"hairpin/lab/demo"
)

// Ethernet addresses in the demo.
var (
	macStays = cluster.MAC{0x02, 0x42, 0xac, 0x12, 0, 4}
	macDies  = cluster.MAC{0x02, 0x42, 0xac, 0x12, 0, 6}
)

// asker sends ARP requests for an address repeatedly, and records which machines reply.
type asker struct {
	mu      sync.Mutex
	turn    int
	last    map[cluster.MAC]int // the last turn in which it replied
	twice   int                 // consecutive turns in which two replied
	longest int
}

const askEvery = 50 * time.Millisecond

func askAll(t *testing.T, h *lab.Host, a netip.Addr) *asker {
	t.Helper()
	x := &asker{last: map[cluster.MAC]int{}}
	fd := -1
	var link *net.Interface
	err := h.Do(func() (err error) {
		if link, err = net.InterfaceByName("eth0"); err != nil {
			return err
		}
		protocol := uint16(unix.ETH_P_ARP)
		if a.Is6() {
			protocol = unix.ETH_P_IPV6
		}
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC,
			int(bits.NativeEndian.Uint16(bits.BigEndian.AppendUint16(nil, protocol))))
		return err
	})
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 5000})
	}
	if err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-done; t.Logf("two answered for %v in a row", x.both()) })
	to := &unix.SockaddrLinklayer{Ifindex: link.Index}
	question := attack.ARPRequest(cluster.MAC(link.HardwareAddr), netip.MustParseAddr("172.18.0.100"), a)
	if a.Is6() {
		question = attack.NeighborSolicitation(cluster.MAC(link.HardwareAddr),
			netip.MustParseAddr("fc00:f853:ccd::64"), a)
	}
	go func() {
		defer close(done)
		defer unix.Close(fd)
		for frame := make([]byte, 256); ; {
			select {
			case <-stop:
				return
			default:
			}
			_ = unix.Sendto(fd, question, 0, to) // the next one will do
			answers := map[cluster.MAC]bool{}
			for end := time.Now().Add(askEvery); time.Now().Before(end); {
				n, _, err := unix.Recvfrom(fd, frame, 0)
				switch {
				case err != nil:
				case a.Is4() && n >= 42 && frame[21] == 2 && netip.AddrFrom4([4]byte(frame[28:32])) == a:
					answers[cluster.MAC(frame[22:28])] = true
				case a.Is6() && n >= 86 && frame[20] == unix.IPPROTO_ICMPV6 && frame[54] == 136 &&
					netip.AddrFrom16([16]byte(frame[62:78])) == a:
					answers[cluster.MAC(frame[80:86])] = true
				}
			}
			x.note(answers)
		}
	}()
	return x
}

func (x *asker) note(answers map[cluster.MAC]bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.turn++
	for m := range answers {
		x.last[m] = x.turn
	}
	x.twice++
	if len(answers) < 2 {
		x.twice = 0
	}
	x.longest = max(x.longest, x.twice)
}

// both returns for how long two machines replied in each turn, at most.
func (x *asker) both() time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return time.Duration(x.longest) * askEvery
}

// reset forgets for how long two machines replied.
func (x *asker) reset() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.longest, x.twice = 0, 0
}

// only waits until one machine replies, and no other has for some time.
func (x *asker) only(t *testing.T, what string, mac cluster.MAC) {
	t.Helper()
	eventually(t, 60*time.Second, what, func() (bool, string) {
		x.mu.Lock()
		defer x.mu.Unlock()
		var who []string
		for m, turn := range x.last {
			if turn > x.turn-10 {
				who = append(who, m.String())
			}
		}
		return slices.Equal(who, []string{mac.String()}), "who answers: " + strings.Join(who, ", ")
	})
}

// cutAPI separates a node from the API until join.
func cutAPI(t *testing.T, n *lab.Node) (join func()) {
	t.Helper()
	sh(t, n,
		"nft 'add table inet cut; add chain inet cut out { type filter hook output priority 0; }; add rule inet cut "+
			"out ip daddr 172.18.0.10 drop; '"+
			"'add chain inet cut in { type filter hook input priority 0; }; add rule inet cut in ip "+
			"saddr 172.18.0.10 drop'")
	return func() { sh(t, n, "nft delete table inet cut") }
}

// cutOff separates the node that has the address from the API, and makes the controller move the
// address. The node is not notified, detects the other one, and releases the address.
func cutOff(t *testing.T, g *demo.Egress, x *asker) {
	t.Helper()
	n := g.Demo().Lab().Node(demo.EgressStays)
	x.only(t, "one has the address", macStays)
	join := cutAPI(t, n)
	if err := errors.Join(g.Both(t.Context()), g.Label(t.Context(), demo.EgressStays, false),
		g.Nodes(t.Context(), demo.EgressDies)); err != nil {
		t.Fatal(err)
	}
	x.only(t, "who is cut off from the API lets go", macDies)
	if err := g.See(t.Context(), "172.18.0.33"); err != nil {
		t.Error(err)
	}
	join()
	if err := g.Label(t.Context(), demo.EgressStays, true); err != nil {
		t.Fatal(err)
	}
}

// foreignClaim makes a machine that is no node claim the address. An Event reports it, and the node
// announces the address again.
func foreignClaim(t *testing.T, g *demo.Egress, x *asker) {
	t.Helper()
	a := netip.MustParseAddr("172.18.0.33")
	h := g.Demo().Lab().Host("api")
	fd, link := -1, 0
	err := h.Do(func() (err error) {
		l, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		link = l.Index
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	mac := cluster.MAC{2, 0, 0, 0, 0, 0x66}
	eventually(t, 60*time.Second, "there is an Event", func() (bool, string) {
		if err := unix.Sendto(fd, attack.ARPRequest(mac, a, a), 0, &unix.SockaddrLinklayer{Ifindex: link}); err != nil {
			return false, err.Error()
		}
		list, err := g.Demo().Client().CoreV1().Events("").List(t.Context(),
			metav1.ListOptions{FieldSelector: "reason=AddressConflict"})
		if err != nil {
			return false, err.Error()
		}
		for _, e := range list.Items {
			if e.InvolvedObject.Kind == "EgressIP" && strings.Contains(e.Message, mac.String()) &&
				strings.Contains(e.Message, a.String()) {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%d of another machine", len(list.Items))
	})
	x.only(t, "the node still has it", macDies)
	eventually(t, 60*time.Second, "neighbours believe the node", func() (bool, string) {
		out, err := g.Demo().Lab().Host("client").Exec(t.Context(), "ip", "neighbor", "show", "to", a.String())
		return err == nil && strings.Contains(out, macDies.String()), out
	})
}

// restarts kills the node that has the address, and at once the controller and the other nodes'
// agents, which start again.
func restarts(t *testing.T, g *demo.Egress, x *asker) {
	t.Helper()
	if err := errors.Join(g.Both(t.Context()), g.See(t.Context(), "172.18.0.33"), g.Kill()); err != nil {
		t.Fatal(err)
	}
	l := g.Demo().Lab()
	if err := lab.Together(
		func() error { return l.Node("node-a").Restart(t.Context(), "hairpin-controller", syscall.SIGKILL) },
		func() error { return l.Node("node-a").Restart(t.Context(), agent, syscall.SIGKILL) },
		func() error { return l.Node(demo.EgressStays).Restart(t.Context(), agent, syscall.SIGKILL) },
	); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.See(t.Context(), "172.18.0.33"), g.Nodes(t.Context(), demo.EgressStays)); err != nil {
		t.Fatal(err)
	}
	x.only(t, "one has the address", macStays)
}
