package walk

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/ovs"
)

// distributed gives node n1 of byHand(2) the distributed gateway port of
// docs/design/origins.md#node-local-access, and its host the route to Services by the management
// port.
func distributed() World {
	w := byHand(2)
	s := w.States["n1"]
	const port, net = "rtos-node_local_switch", "node_local_switch"
	gw0, router, outside := mac("0a:58:a9:fe:00:01"), mac("0a:58:a9:fe:00:02"), mac("0a:58:a9:fe:00:03")
	s.NB.Add(
		&nb.Switch{Name: net},
		&nb.SwitchPort{Name: "lnet-" + net, Switch: net, Type: "localnet", Addresses: []string{"unknown"},
			Options: map[string]string{"network_name": "locnet"}},
		&nb.RouterPort{Name: port, Router: "ovn_cluster_router", MAC: router,
			Networks: []netip.Prefix{prefix("169.254.0.2/20"), prefix("fd6b::2/64")}, Chassis: "chassis-n1"},
		&nb.SwitchPort{Name: "stor-" + net, Switch: net, Type: "router", Addresses: []string{"router"},
			Options: map[string]string{"router-port": port}},
	)
	s.Bridge.Settings["ovn-bridge-mappings"] += ",locnet:br-local"
	s.Bridge.Ports["ovn-k8s-gw0"] = ovs.Port{Name: "ovn-k8s-gw0", Bridge: "br-local", Type: "internal", MAC: gw0}
	for _, f := range []struct {
		word, mgmt, node, gw0, outside, services, via string
		own                                           netip.Prefix
	}{
		{"ip4", "10.244.1.2", "172.18.0.3", "169.254.0.1", "169.254.0.3", "10.96.0.0/16", "10.244.1.1",
			prefix("169.254.0.1/20")},
		{"ip6", "fd00:10:244:1::2", "fc00:f853:ccd::3", "fd6b::1", "fd6b::3", "fd00:10:96::/112", "fd00:10:244:1::1",
			prefix("fd6b::1/64")},
	} {
		logical := addr("%s", f.mgmt)
		s.NB.Add(
			&nb.MACBinding{Port: port, IP: addr("%s", f.gw0), MAC: gw0},
			&nb.Policy{Router: "ovn_cluster_router", Priority: 1005, Match: f.word + ".src == " + f.mgmt + " && " +
				f.word + ".dst == " + f.node,
				Action: nb.Reroute, NextHops: []netip.Addr{addr("%s", f.gw0)}},
			&nb.NAT{Router: "ovn_cluster_router", Type: nb.DNATAndSNAT, External: addr("%s", f.outside),
				Logical:     netip.PrefixFrom(logical, logical.BitLen()),
				LogicalPort: "k8s-n1", ExternalMAC: outside, GatewayPort: port},
		)
		a := host.AddressKey{Link: "ovn-k8s-gw0", Prefix: f.own}
		s.Host.Addresses[a] = host.Address{AddressKey: a}
		r := host.RouteKey{Table: 254, Prefix: prefix("%s", f.services)}
		s.Host.Routes[r] = host.Route{RouteKey: r, Link: "ovn-k8s-mp0", Via: addr("%s", f.via), Src: logical}
		n := host.NeighborKey{Link: "ovn-k8s-gw0", IP: addr("%s", f.outside)}
		s.Host.Neighbors[n] = host.Neighbor{NeighborKey: n, MAC: outside}
	}
	return w
}

// The third flow of the document, host → cluster IP → own host, in both families and back; and
// packets that do not use the port.
func TestDistributedGatewayPort(t *testing.T) {
	for _, c := range []struct {
		name string
		from Point
		to   string
		seen string
		port bool // uses the distributed port
	}{
		{"own host", inHost(1), "10.96.0.21:80", "169.254.0.3", true},
		{"own host, IPv6", inHost(1), "[fd00:10:96::21]:80", "fd6b::3", true},
		{"other host", inHost(1), "10.96.0.22:80", "172.18.0.3", false},
		{"pod", inHost(1), "10.96.0.11:80", "10.244.1.2", false},
		{"other node's pod, IPv6", inHost(1), "[fd00:10:96::12]:80", "fd00:10:244:1::2", false},
		{"from a pod", inPod(1, "pod%d"), "10.96.0.21:80", "10.244.1.3", false},
		{"from another node", inHost(2), "10.96.0.21:80", "172.18.0.4", false},
	} {
		tr := walk(t, distributed(), c.from, tcp(c.to))
		if v := tr.Verdict; !v.Delivered || !v.Answered || v.Seen.Src != addr("%s", c.seen) {
			t.Errorf("%s: the endpoint should see %s\n%s", c.name, c.seen, tr)
		}
		if got := strings.Contains(tr.String(), "br-local"); got != c.port {
			t.Errorf("%s: by br-local: %v\n%s", c.name, got, tr)
		}
		if through := slices.ContainsFunc(tr.ForwardVisits,
			func(v Visit) bool { return v.Bridge == "br-local" && v.Out == "ovn-k8s-gw0" }); through != c.port {
			t.Errorf("%s: visits %+v", c.name, tr.ForwardVisits)
		}
		if c.name == "own host" {
			golden(t, "host-self-dgp", tr.String())
		}
	}
	// An external connection gets the logical address: here the host's own, so that the kernel
	// drops it.
	tr := walk(t, distributed(), inHost(1), tcp("169.254.0.3:9000"))
	if v := tr.Verdict; !strings.Contains(tr.String(), "lr_in_dnat") || !strings.Contains(v.Reason, "martian source") {
		t.Errorf("to the management port's address outside\n%s", tr)
	}
}

// The host drops what the port does not translate, as the document says of the old topology.
func TestDistributedWithoutNAT(t *testing.T) {
	w := distributed()
	for k, r := range w.States["n1"].NB {
		if x, ok := r.(*nb.NAT); ok && x.GatewayPort != "" {
			delete(w.States["n1"].NB, k)
		}
	}
	if v := walk(t, w, inHost(1), tcp("10.96.0.21:80")).Verdict; v.Delivered ||
		!strings.Contains(v.Reason, "martian source") {
		t.Errorf("%+v", v)
	}
}

func TestDistributedUnknown(t *testing.T) {
	nat := func(s datapath.State, change func(*nb.NAT)) {
		x := &nb.NAT{Router: "ovn_cluster_router", Type: nb.DNATAndSNAT, External: addr("169.254.0.9"),
			Logical: prefix("10.244.1.3/32"), LogicalPort: "default_pod1",
			ExternalMAC: cluster.MAC{2}, GatewayPort: "rtos-node_local_switch"}
		change(x)
		s.NB.Add(x)
	}
	for want, change := range map[string]func(s datapath.State){
		"which does not exist": func(s datapath.State) {
			nat(s,
				func(x *nb.NAT) { x.GatewayPort = "none" })
		},
		"it is not known what it does": func(s datapath.State) { nat(s, func(x *nb.NAT) { x.Type = nb.SNAT }) },
		"at port rtoj-ovn_cluster_router": func(s datapath.State) {
			nat(s,
				func(x *nb.NAT) { x.GatewayPort = "rtoj-ovn_cluster_router" })
		},
		"router without a chassis": func(s datapath.State) { nat(s, func(x *nb.NAT) { x.GatewayPort = "" }) },
	} {
		w := distributed()
		change(w.States["n1"])
		if tr, err := Walk(w, inHost(1), tcp("10.96.0.21:80")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, not %s\n%s", err, want, tr)
		}
	}
}
