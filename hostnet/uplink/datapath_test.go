package uplink_test

import (
	"fmt"
	"os"
	"testing"

	"hairpin/hostnet/uplink"
	"hairpin/lab"
)

// TestDatapathType: the entry script's choice has precedence over ovn-controller's configuration,
// and that over existing bridges, of which br-int counts first.
func TestDatapathType(t *testing.T) {
	l := lab.Start(t, lab.Config{Name: fmt.Sprintf("br%d", os.Getpid())})
	n := l.Add(t, lab.NodeConfig{Plain: true})
	if err := n.Start(t.Context(), lab.OVSDB); err != nil {
		t.Fatal(err)
	}
	sh(t, n, "ovs-vsctl --no-wait init")
	for _, c := range []struct{ do, want string }{
		{"add-br b", "system"},
		{"set Bridge b datapath_type=netdev", "netdev"},
		{"add-br a -- set Bridge a datapath_type=system", "system"},
		{"add-br br-int -- set Bridge br-int datapath_type=netdev", "netdev"},
		{"set Open_vSwitch . external_ids:ovn-bridge-datapath-type=system", "system"},
		{"set Open_vSwitch . external_ids:hairpin-datapath=netdev", "netdev"},
		{"clear Open_vSwitch . external_ids", "netdev"},
	} {
		sh(t, n, "ovs-vsctl --no-wait "+c.do)
		db := open(t, n)
		got := uplink.DatapathType(db.View())
		db.Close()
		if got != c.want {
			t.Errorf("after %s it is %s, want %s", c.do, got, c.want)
		}
	}
	// Without bridges it is the kernel's, if the kernel has it.
	sh(t, n, "ovs-vsctl --no-wait del-br a -- del-br b -- del-br br-int")
	db := open(t, n)
	defer db.Close()
	kernel := sh(t, n, "test -e /sys/module/openvswitch && echo system || echo netdev")
	if got := uplink.DatapathType(db.View()); got+"\n" != kernel {
		t.Errorf("without bridges it is %s, want %s", got, kernel)
	}
}
