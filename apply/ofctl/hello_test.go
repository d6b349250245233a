package ofctl_test

import (
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"hairpin/datapath/flow"
	"hairpin/lab"
)

// lateness is between a client and ovs-vswitchd. It holds back the first message of a connection until ovs-vswitchd gives that up.
type lateness struct {
	real  string       // the socket of ovs-vswitchd
	late  atomic.Int32 // how many of the next connections
	ended atomic.Int32 // by ovs-vswitchd
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

// TestLateHello: ovs-vswitchd ends a connection whose first message comes late. It is tried once more, and no change is lost.
func TestLateHello(t *testing.T) {
	n := node(t)
	target := open(t, n)
	first := parse(t, flows)
	reach(t, target, first)
	l := beLate(t, n)
	more := parse(t, flows+"cookie=0xdeff105,table=7,priority=3,tcp,tp_src=5 actions=drop\n")
	changes := flow.Diff(more, read(t, target))
	for what, do := range map[string]func() error{
		"change": func() error { return target.Apply(ctx(t), changes) },
		"read":   func() error { _, err := target.Counts(ctx(t)); return err },
	} {
		l.late.Store(1)
		l.ended.Store(0)
		begin := time.Now()
		if err := do(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if l.ended.Load() != 1 {
			t.Errorf("%s: ovs-vswitchd ended %d connections", what, l.ended.Load())
		}
		t.Logf("%s took %v", what, time.Since(begin).Round(time.Millisecond))
	}
	if d := flow.Diff(more, read(t, target)); !d.Empty() {
		t.Errorf("%d differences left: %+v", d.Count(), d)
	}
	l.late.Store(2) // but not for ever
	err := target.Apply(ctx(t), flow.Diff(first, read(t, target)))
	if err == nil || !strings.Contains(err.Error(), "change flows of br-ex") {
		t.Errorf("two late messages: error %v", err)
	}
	reach(t, target, first)
}
