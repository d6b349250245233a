package ofctl_test

import (
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"hairpin/lab"
)

// lateness is a proxy between clients and ovs-vswitchd. It holds back the first message of a
// connection until ovs-vswitchd closes the connection.
type lateness struct {
	real  string       // the socket of ovs-vswitchd
	late  atomic.Int32 // how many of the next connections to delay
	ended atomic.Int32 // connections closed by ovs-vswitchd
}

func beLate(t *testing.T, n *lab.Node) *lateness {
	t.Helper()
	socket := n.Path("/run/openvswitch/" + lab.GatewayBridge + ".mgmt")
	l := &lateness{real: socket + ".real"}
	if err := os.Rename(socket, l.real); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go l.pass(c)
		}
	}()
	return l
}

func (l *lateness) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("unix", l.real)
	if err != nil {
		return
	}
	defer server.Close()
	if l.late.Add(-1) >= 0 {
		if _, err := io.Copy(io.Discard, server); err == nil { // until it ends
			l.ended.Add(1)
		}
		return
	}
	go func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	}()
	_, _ = io.Copy(server, client)
}

// TestLateHello checks that a request is repeated once after ovs-vswitchd closed a connection
// because its first message came late.
func TestLateHello(t *testing.T) {
	n := node(t)
	target := open(t, n)
	reach(t, target, parse(t, flows))
	l := beLate(t, n)
	l.late.Store(1)
	begin := time.Now()
	if _, err := target.Counts(ctx(t)); err != nil {
		t.Error(err)
	}
	if l.ended.Load() != 1 {
		t.Errorf("ovs-vswitchd ended %d connections", l.ended.Load())
	}
	t.Logf("it took %v", time.Since(begin).Round(time.Millisecond))
	l.late.Store(2) // but not without limit
	if _, err := target.Counts(ctx(t)); err == nil || !strings.Contains(err.Error(), "OpenFlow of br-ex") {
		t.Errorf("two late messages: error %v", err)
	}
	reach(t, target, parse(t, flows))
}
