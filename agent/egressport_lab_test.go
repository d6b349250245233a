package agent_test

import (
	"cmp"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/cluster"
	"hairpin/lab"
)

// TestEgressPortAgain: an address moves away, to a node that learns in advance which hosts pods
// talk to, and comes back, under connections whose end the first node does not receive. While it is
// coming back, that node does not take a reply to another connection from one of their ports for a
// reply to them. In the VM as TestEgressIPVRF:
//
//	lab/kernel.sh -t 1800 bash -c "cd agent && ./agent.test -test.run EgressPortAgain -test.v -hairpin ../bin/hairpin -slow 20"
func TestEgressPortAgain(t *testing.T) {
	// In the VM, all replies are late.
	t.Parallel()
	l := startDemoIn(t, cmp.Or(*egressMode, cluster.ModeShared),
		"[ovnkubernetesfeature]\negressip-reachability-total-timeout = 0\n")
	v := newViewer(t, l)
	pod, b, a := v.pods["pod-a1"], l.Node("node-b"), l.Node("node-a")
	on := func(node string) {
		t.Helper()
		put(t, l, "egressip.yaml", carriedAs([]string{egressAddress}, "target: podlocal", egressAddress+" "+node))
	}
	ways := func() string { return sh(t, a, "ovn-nbctl lr-policy-list ovn_cluster_router | grep ' 100 ' || true") }
	on("node-b")
	v.until("pod-a1", []string{"172.18.0.100:9000"}, egressAddress)
	const ports, first = 12, 20100
	var open []net.Conn
	for i := range ports {
		c, _, err := dialFrom(pod, first+2*i, v.patience)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	before := ways()
	on("node-c")
	limit := time.Duration(*slow) * 20 * time.Second
	early := false
	eventually(t, limit, "pods are led to node-c", func() (bool, string) {
		if c, _, err := dialFrom(pod, 0, v.patience); err == nil {
			_ = c.Close()
		}
		knows := strings.Contains(sh(t, l.Node("node-c"),
			"ovn-sbctl --timeout=10 --bare --columns=ip list MAC_Binding"), "172.18.0.100")
		now := ways()
		early = early || knows && now == before
		return now != before, now
	})
	if !early && *slow == 1 { // slower machines show only that both are so
		t.Error("node-c's router learns the client's MAC only when pods are led there")
	}
	for _, c := range open { // the new node's kernel forwards no reset of an unknown connection
		if _, err := c.Write([]byte("\n")); err != nil {
			t.Error(err)
		}
		eventually(t, limit, "the server has heard", func() (bool, string) {
			info, err := tcpInfo(c)
			return err == nil && info.Unacked == 0, fmt.Sprint(err)
		})
		_ = c.Close()
	}
	eventually(t, limit, "node-b has let go", func() (bool, string) {
		rows := sh(t, b, "ovn-nbctl lr-nat-list GR_node-b")
		return !strings.Contains(rows, egressAddress), rows
	})
	on("node-b")
	resent := [2]int{} // of ports that were used, and of others
	for i := range 2 * ports {
		c, again, err := dialFrom(pod, first+i, v.patience)
		if err != nil {
			t.Errorf("port %d: %v", first+i, err)
			continue
		}
		_ = c.Close()
		if again > 0 {
			resent[i%2]++
		}
		time.Sleep(80 * time.Millisecond) // over the time in which pods are routed to the other node
	}
	t.Logf("of %d connections from ports that were used %d sent a packet again, of %d others %d", ports, resent[0],
		ports, resent[1])
	if resent[0] > resent[1]+1 {
		t.Error("a port that was used is not used again as others are")
	}
}

// dialFrom connects to the external machine from a port. It returns the number of retransmissions.
// The connection ends with a reset.
func dialFrom(p lab.Place, port int, patience time.Duration) (c net.Conn, again int, err error) {
	err = lab.Do(p, func() (err error) {
		d := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{Port: port}}
		c, err = d.Dial("tcp4", "172.18.0.100:9000")
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("connection from %s: %w", p.Name(), err)
	}
	if err := c.(*net.TCPConn).SetLinger(0); err != nil {
		return nil, 0, err
	}
	info, err := tcpInfo(c)
	if err != nil {
		return nil, 0, err
	}
	return c, int(info.Total_retrans), nil
}

func tcpInfo(c net.Conn) (info *unix.TCPInfo, err error) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) {
		info,
			err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); e != nil {
		return nil, e
	}
	return info, err
}
