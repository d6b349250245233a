// Package nbtest draws random rows of OVN's databases for property tests.
package nbtest

import (
	"fmt"
	"net/netip"
	"slices"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/delta"
)

// texts draws strings that need every kind of quoting.
func texts() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[a-z][a-z0-9_.-]{0,8}`),
		rapid.StringMatching(`[ -~]{1,12}`),
		rapid.SampledFrom([]string{`ip4.dst == 10.0.0.1 && inport == "a"`, "it's", "a\nb\t\x01", `\`, "é ü", "#x",
			"a,b", "{x=y}", "$'", "`"}),
	)
}

// States draws states that a real OVN accepts: referenced rows exist, and unique columns are
// unique. There are few names, so that two drawn states share rows. The texts need quoting only if
// wild is true.
func States(wild bool) *rapid.Generator[nb.State] {
	return rapid.Custom(func(t *rapid.T) nb.State {
		d := drawer{t: t, s: nb.State{}, wild: wild}
		d.roots()
		for _, k := range delta.Sorted(d.s, nb.Key.Compare) {
			switch r := d.s[k].(type) {
			case *nb.Router:
				d.onRouter(r.Name)
			case *nb.Switch:
				d.onSwitch(r.Name)
			}
		}
		return d.s
	})
}

type drawer struct {
	t    *rapid.T
	s    nb.State
	wild bool
}

func (d *drawer) text(label string) string {
	if d.wild {
		return texts().Draw(d.t, label)
	}
	return rapid.StringMatching(`[a-z]{1,4}`).Draw(d.t, label)
}

func (d *drawer) owner() cluster.Owner {
	return rapid.SampledFrom([]cluster.Owner{
		{Kind: "Node", Name: "node-a"}, {Kind: "Service", Namespace: "default", Name: "web"},
		{Kind: "Pod", Namespace: "kube-system", Name: "dns"},
	}).Draw(d.t, "owner")
}

// options draws some of the claimed keys.
func (d *drawer) options(keys ...string) map[string]string {
	var m map[string]string
	for _, k := range keys {
		if rapid.Bool().Draw(d.t, k) {
			if m == nil {
				m = map[string]string{}
			}
			m[k] = d.text("value of " + k)
		}
	}
	return m
}

func (d *drawer) some(label string, names ...string) []string {
	return slices.DeleteFunc(names, func(string) bool { return !rapid.Bool().Draw(d.t, label) })
}

func (d *drawer) addr(label string) netip.Addr {
	n := rapid.IntRange(1, 6).Draw(d.t, label)
	if rapid.Bool().Draw(d.t, label+" is IPv6") {
		return netip.MustParseAddr(fmt.Sprintf("fd00::%d", n))
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})
}

func (d *drawer) addrs(label string, least, most int) []netip.Addr {
	list := rapid.SliceOfNDistinct(rapid.Custom(func(*rapid.T) netip.Addr { return d.addr(label) }), least, most,
		func(a netip.Addr) netip.Addr { return a }).Draw(d.t, label)
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

func (d *drawer) prefix(label string) netip.Prefix {
	a := d.addr(label)
	bits := rapid.SampledFrom([]int{a.BitLen(), a.BitLen() / 2}).Draw(d.t, label+" length")
	return netip.PrefixFrom(a, bits).Masked()
}

func (d *drawer) mac() cluster.MAC {
	return cluster.MAC{0x0a, 0x58, 0, 0, 0, byte(rapid.IntRange(0, 255).Draw(d.t, "mac"))}
}

func (d *drawer) roots() {
	if rapid.Bool().Draw(d.t, "global") {
		d.s.Add(&nb.Global{Name: d.text("zone"), Options: d.options("name"), Owner: d.owner()})
	}
	for _, n := range d.some("chassis", "node-b", "node-c") {
		// Each chassis has its own address: encapsulations are unique by it.
		ip := netip.AddrFrom4([4]byte{172, 18, n[len(n)-1], byte(rapid.IntRange(1, 3).Draw(d.t, "chassis ip"))})
		d.s.Add(&nb.Chassis{Name: n, Hostname: d.text("hostname"), IP: ip, Owner: d.owner()})
	}
	for _, n := range d.some("address set", "as1", "as2") {
		var list []netip.Prefix
		for _, a := range d.addrs("members", 0, 4) {
			list = append(list, netip.PrefixFrom(a, a.BitLen()))
		}
		d.s.Add(&nb.AddressSet{Name: n, Addresses: list, Owner: d.owner()})
	}
	groups := d.some("group", "g1", "g2")
	for _, n := range groups {
		d.s.Add(&nb.Group{Name: n, Owner: d.owner()})
	}
	for _, n := range d.some("router", "r1", "r2") {
		d.s.Add(&nb.Router{Name: n, Options: d.options("chassis", "snat-ct-zone"),
			Groups: d.some("of router", slices.Clone(groups)...), Owner: d.owner()})
	}
	for _, n := range d.some("switch", "s1", "s2") {
		d.s.Add(&nb.Switch{Name: n, OtherConfig: d.options("subnet", "interconn-ts"),
			Groups: d.some("of switch", slices.Clone(groups)...), Owner: d.owner()})
	}
	for _, n := range d.some("lb", "default/web:http/tcp/IPv4", "default/web:http/tcp/IPv6", "lb3") {
		d.loadBalancer(n, groups)
	}
}

func (d *drawer) loadBalancer(name string, groups []string) {
	lb := &nb.LoadBalancer{
		Name: name, Protocol: rapid.SampledFrom([]cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP}).Draw(d.t,
			"protocol"),
		Options: d.options("reject", "hairpin_snat_ip"), Affinity: rapid.Bool().Draw(d.t, "affinity"),
		Groups: d.some("of lb", slices.Clone(groups)...), Owner: d.owner(),
	}
	port := func(label string) uint16 { return rapid.SampledFrom([]uint16{80, 8080, 30080}).Draw(d.t, label) }
	for _, a := range d.addrs("vip", 0, 3) {
		v := nb.VIP{Addr: netip.AddrPortFrom(a, port("vip port"))}
		for _, b := range d.addrs("backend", 0, 3) {
			if b.Is4() == a.Is4() {
				v.Backends = append(v.Backends, netip.AddrPortFrom(b, port("backend port")))
			}
		}
		lb.VIPs = append(lb.VIPs, v)
	}
	d.s.Add(lb)
}

func (d *drawer) onRouter(router string) {
	t := d.t
	ports := d.some("router port", "rtos-"+router, "rtoj-"+router)
	for _, n := range ports {
		p := &nb.RouterPort{Name: n, Router: router, MAC: d.mac(),
			Options: d.options("gateway_mtu", "gateway_mtu_bypass"), Owner: d.owner()}
		for _, a := range d.addrs("network", 1, 3) {
			p.Networks = append(p.Networks, netip.PrefixFrom(a, a.BitLen()-8))
		}
		p.Chassis = rapid.SampledFrom([]string{"", "node-a", "node-b"}).Draw(t, "gateway chassis")
		d.s.Add(p)
		for _, ip := range d.addrs("neighbour", 0, 2) {
			d.s.Add(&nb.MACBinding{Port: n, IP: ip, MAC: d.mac(), Owner: d.owner()})
		}
	}
	for range rapid.IntRange(0, 3).Draw(t, "routes") {
		d.s.Add(&nb.Route{Router: router, Prefix: d.prefix("route"), NextHop: d.addr("next hop"),
			BySource: rapid.Bool().Draw(t, "by source"),
			OutPort:  rapid.SampledFrom([]string{"", "rtoj-" + router}).Draw(t, "port"), Owner: d.owner()})
	}
	for range rapid.IntRange(0, 3).Draw(t, "policies") {
		p := &nb.Policy{Router: router, Priority: rapid.IntRange(100, 102).Draw(t, "priority"), Match: d.match(),
			Owner:  d.owner(),
			Action: rapid.SampledFrom([]nb.Action{nb.Allow, nb.Drop, nb.Reroute}).Draw(t, "action")}
		if p.Action == nb.Reroute {
			p.NextHops = d.addrs("next hops", 1, 2)
		}
		if p.Action != nb.Drop && rapid.Bool().Draw(t, "mark") {
			p.Options = map[string]string{"pkt_mark": "1008"}
		}
		d.s.Add(p)
	}
	for range rapid.IntRange(0, 3).Draw(t, "nats") {
		n := &nb.NAT{Router: router, Type: rapid.SampledFrom([]nb.NATType{nb.SNAT, nb.DNATAndSNAT}).Draw(t, "type"),
			External: d.addr("external"),
			Logical:  d.prefix("logical"), PortRange: rapid.SampledFrom([]string{"", "61000-65535"}).Draw(t, "ports"),
			Match: d.match(), Owner: d.owner()}
		if n.Type == nb.DNATAndSNAT && rapid.Bool().Draw(t, "distributed") {
			n.LogicalPort, n.ExternalMAC = "k8s-node-a", d.mac()
		}
		n.GatewayPort = rapid.SampledFrom(append([]string{""}, ports...)).Draw(t, "gateway port")
		d.s.Add(n)
	}
}

func (d *drawer) match() string {
	if d.wild {
		return d.text("match")
	}
	return rapid.SampledFrom([]string{`ip4.dst == 10.0.0.1`, `inport == "rtos-r1" && ip6.dst == fd00::1`, ``}).Draw(d.t,
		"match")
}

func (d *drawer) onSwitch(name string) {
	for range rapid.IntRange(0, 2).Draw(d.t, "qos") {
		d.s.Add(&nb.QoS{Switch: name, Priority: rapid.IntRange(100, 102).Draw(d.t, "priority"), Match: d.match(),
			Mark: uint32(rapid.IntRange(0, 3).Draw(d.t, "mark")), Owner: d.owner()})
	}
	for range rapid.IntRange(0, 2).Draw(d.t, "acls") {
		d.s.Add(&nb.ACL{Switch: name, Priority: rapid.IntRange(100, 102).Draw(d.t, "priority"), Match: d.match(),
			Action: rapid.SampledFrom([]nb.Action{nb.Allow, nb.Drop}).Draw(d.t, "action"), Owner: d.owner()})
	}
	for _, n := range d.some("switch port", "stor-"+name, "pod_"+name) {
		p := &nb.SwitchPort{Name: n, Switch: name,
			Type:    rapid.SampledFrom([]string{"", "router", "localnet", "remote"}).Draw(d.t, "port type"),
			Options: d.options("router-port", "requested-tnl-key"), Owner: d.owner()}
		p.Addresses = rapid.SampledFrom([][]string{nil, {"router"}, {"unknown"},
			{"0a:58:0a:f4:00:03 10.244.0.3 fd00:10:244::3"}}).Draw(d.t, "addresses")
		p.PortSecurity = rapid.SampledFrom([][]string{nil, {"0a:58:0a:f4:00:03"},
			{"0a:58:0a:f4:00:03 10.244.0.3", "0a:58:0a:f4:00:03 fd00:10:244::3"}}).Draw(d.t, "port security")
		d.s.Add(p)
	}
}
