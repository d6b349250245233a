package image_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"hairpin/lab"
)

// forwards reports whether the underlay's host gets an answer from the node through br-ex.
func forwards(l *lab.Lab) bool {
	done := false
	err := l.Host("underlay").Do(func() error {
		c, err := net.DialTimeout("tcp", "172.18.0.3:8081", 500*time.Millisecond)
		if err == nil {
			done = c.Close() == nil
		}
		return nil
	})
	return err == nil && done
}

// TestEntryWithoutDatabase checks that Open vSwitch forwards while ovsdb-server does not start, and
// follows its database again afterwards. The same holds after ends of ovs-vswitchd and of the
// connection between the two.
func TestEntryWithoutDatabase(t *testing.T) {
	l, n := node(t)
	start(t, n, "one", "ovs")
	bridge(t, n)
	stop, err := lab.Serve(t.Context(), n.Host, "host", 8081)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stop() }()
	eventually(t, "it forwards", func() bool { return forwards(l) })

	sh(t, n, `cd /etc/openvswitch; mv conf.db away; kill -9 $(pgrep -x ovsdb-server)`)
	eventually(t, "ovsdb-server does not start", func() bool {
		return strings.Contains(sh(t, n, "cat /var/log/one-ovs.log"), "failed to open database")
	})
	for range 20 {
		if !forwards(l) {
			t.Fatal("it does not forward without ovsdb-server")
		}
	}
	sh(t, n, "mv /etc/openvswitch/away /etc/openvswitch/conf.db")
	follows := func(port string) {
		t.Helper()
		begin := time.Now()
		// ovs-vsctl waits until ovs-vswitchd has applied the change.
		succeeds(t, n, "ovs-vsctl --timeout=5 --may-exist add-port br-ex "+port+" -- set Interface "+port+` type=internal
			test -e /sys/class/net/`+port)
		eventually(t, "it forwards", func() bool { return forwards(l) })
		t.Logf("%s: follows and forwards after %v", port, time.Since(begin).Round(time.Millisecond))
	}
	follows("away")
	for i, name := range []string{"connect-databas", "ovs-vswitchd", "ovsdb-server"} { // names have 15 characters
		sh(t, n, "kill -9 $(pgrep -x "+name+")")
		follows(fmt.Sprintf("killed%d", i))
	}
}
