package plan_test

import (
	"maps"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/delta"
	"hairpin/plan"
)

// mirrored returns the IPv6 twin of an IPv4 address: the same last four bytes, and so the same
// MACs.
func mirrored(a netip.Addr) netip.Addr {
	if !a.Is4() {
		return a
	}
	b := addr("fd00::").As16()
	copy(b[12:], a.AsSlice())
	return netip.AddrFrom16(b)
}

func mirroredPrefix(p netip.Prefix) netip.Prefix {
	switch {
	case !p.IsValid() || !p.Addr().Is4():
		return p
	case p.Bits() == 0:
		return prefix("::/0")
	case p == prefix("127.0.0.0/8"):
		return prefix("::1/128")
	}
	return netip.PrefixFrom(mirrored(p.Addr()), p.Bits()+96)
}

var ipv4 = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+(/\d+)?`)

// mirroredText translates text: names, matches of OVN, options.
func mirroredText(s string) string {
	if s == string(nft.KeyIPSlot) {
		return string(nft.KeyIP6Slot)
	}
	s = ipv4.ReplaceAllStringFunc(s, func(a string) string {
		if strings.Contains(a, "/") {
			return mirroredPrefix(prefix(a)).String()
		}
		return mirrored(addr(a)).String()
	})
	switch s {
	case "ip daddr", "ip saddr": // nft key fields
		return "ip6" + s[2:]
	}
	return strings.NewReplacer("IPv4", "IPv6", "hosts_ip4", "hosts_ip6", "secondary_ip4", "secondary_ip6", "ip4.",
		"ip6.", "force_snat == 1 && ip4", "force_snat == 1 && ip6", "ports4", "ports6", "externals4", "externals6",
		"guarded4", "guarded6", "announced4", "announced6",
		"allowed4", "allowed6", "egress4", "egress6", "egress-pods4", "egress-pods6", "tunnels4", "tunnels6",
		"icmp4.type == 8", "icmp6.type == 128", "ip4 && udp.dst == 68", "ip6 && udp.dst == 546", "node-ips4",
		"node-ips6", "service-ips4", "service-ips6").Replace(s)
}

// mirror returns a copy of a value with every address in it translated.
func mirror[T any](v T) T {
	return mirrorValue(reflect.ValueOf(&v)).Elem().Interface().(T)
}

func mirrorValue(v reflect.Value) reflect.Value {
	switch x := v.Interface().(type) {
	case netip.Addr:
		return reflect.ValueOf(mirrored(x))
	case netip.Prefix:
		return reflect.ValueOf(mirroredPrefix(x))
	case netip.AddrPort:
		return reflect.ValueOf(netip.AddrPortFrom(mirrored(x.Addr()), x.Port()))
	case cluster.Family:
		return reflect.ValueOf(cluster.IPv6)
	case flow.Protocol:
		return reflect.ValueOf(mirroredProtocol(x))
	case interface{ Plain() any }:
		out := reflect.New(v.Type())
		out.Interface().(delta.AnyMap).SetPlain(mirrorValue(reflect.ValueOf(x.Plain())).Interface())
		return out.Elem()
	}
	out := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.String:
		out.SetString(mirroredText(v.String()))
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(reflect.New(v.Type().Elem()))
			out.Elem().Set(mirrorValue(v.Elem()))
		}
	case reflect.Interface:
		if !v.IsNil() {
			out.Set(mirrorValue(v.Elem()))
		}
	case reflect.Slice:
		for i := range v.Len() {
			out = reflect.Append(out, mirrorValue(v.Index(i)))
		}
	case reflect.Map:
		if !v.IsNil() {
			out = reflect.MakeMap(v.Type())
			for k, e := range v.Seq2() {
				out.SetMapIndex(mirrorValue(k), mirrorValue(e))
			}
		}
	case reflect.Struct:
		out.Set(v)
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				out.Field(i).Set(mirrorValue(v.Field(i)))
			}
		}
	default:
		out.Set(v)
	}
	return out
}

func mirroredProtocol(p flow.Protocol) flow.Protocol {
	switch p {
	case flow.IP:
		return flow.IPv6
	case flow.TCP:
		return flow.TCP6
	case flow.UDP:
		return flow.UDP6
	case flow.SCTP:
		return flow.SCTP6
	case flow.ICMP:
		return flow.ICMP6
	}
	return p
}

// comparable returns a copy of a State without what only one family has, and with one form of what
// the two families have in different forms.
func comparable(s datapath.State) datapath.State {
	s.Bridge.Flows = s.Bridge.Flows.Clone()
	for id, f := range s.Bridge.Flows.All() {
		if f.Match.ICMPType != 0 || f.Match.Protocol == flow.ARP { // neighbor discovery
			s.Bridge.Flows.Delete(id)
		}
	}
	s.NB = maps.Clone(s.NB)
	for k, r := range s.NB {
		if sw, ok := r.(*nb.Switch); ok { // "subnet" is a range, "ipv6_prefix" an address
			changed := *sw
			changed.OtherConfig = maps.Clone(sw.OtherConfig)
			delete(changed.OtherConfig, "subnet")
			delete(changed.OtherConfig, "ipv6_prefix")
			s.NB[k] = &changed
		}
	}
	s.Host.Addresses = maps.Clone(s.Host.Addresses)
	for k, a := range s.Host.Addresses { // IPv4 addresses cannot be deprecated
		a.Deprecated = false
		s.Host.Addresses[k] = a
	}
	// The reply to a NodePort of a loopback address needs a sysctl for IPv4, and a route for IPv6.
	s.Host.Sysctls, s.Host.Routes = maps.Clone(s.Host.Sysctls), maps.Clone(s.Host.Routes)
	delete(s.Host.Sysctls, "net/ipv4/conf/breth0/route_localnet")
	delete(s.Host.Routes, host.RouteKey{Table: host.LocalTable, Prefix: prefix("::1/128")})
	// Neighbor discovery is IP, and ARP is not.
	guard := *s.NFT[nft.Inet].Chains["from-pods"]
	guard.Rules = slices.Clone(guard.Rules)
	for i := range guard.Rules {
		guard.Rules[i].Matches = slices.DeleteFunc(slices.Clone(guard.Rules[i].Matches), func(m nft.Match) bool {
			in, ok := m.(nft.AddrIn)
			return ok && in.Not && (in.Prefix == prefix("fe80::/10") || in.Prefix == prefix("::/128"))
		})
	}
	s.NFT[nft.Inet].Chains["from-pods"] = &guard
	for _, name := range []string{"nodeport-prerouting", "nodeport-output"} {
		chain := *s.NFT[nft.Inet].Chains[name]
		chain.Rules = slices.DeleteFunc(slices.Clone(chain.Rules), func(r nft.Rule) bool {
			return slices.Contains(r.Matches, nft.Match(nft.AddrIn{Dst: true, Prefix: prefix("fe80::/10")}))
		})
		s.NFT[nft.Inet].Chains[name] = &chain
	}
	return s
}

// withoutOther removes the flow for the family that the node's pods do not have: only the host uses
// it.
func withoutOther(s datapath.State, f flow.Protocol) datapath.State {
	s.Bridge.Flows = s.Bridge.Flows.Clone()
	for id, g := range s.Bridge.Flows.All() {
		if g.Table == 0 && g.Priority == 50 && g.Match.Protocol == f {
			s.Bridge.Flows.Delete(id)
		}
	}
	return s
}

// IPv6 has everything that IPv4 has, in its own form.
func TestIPv6MirrorsIPv4(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) { testMirror(t, mode, false) })
		t.Run(mode+", dgp", func(t *testing.T) { testMirror(t, mode, true) })
	}
}

func testMirror(t *testing.T, mode string, dgp bool) {
	v4 := large(5, 300, cluster.IPv4)
	for _, n := range v4.Nodes {
		n.Addresses, n.HostAddresses, n.PodCIDRs = n.Addresses[:1],
			append(n.HostAddresses[:1:1], prefix("172.20.0.7/32")), n.PodCIDRs[:1]
		// tunnels use one family
		n.Gateway.Addresses, n.Gateway.NextHops, n.Gateway.Userspace = n.Gateway.Addresses[:1], n.Gateway.NextHops[:1],
			mode != cluster.ModeDetached
		inMode(n, mode)
		n.Gateway.NodeLocal = dgp
	}
	for _, p := range v4.Pods {
		p.IPs = p.IPs[:1]
	}
	c := &v4.Config
	c.ClusterSubnets, c.ServiceCIDRs, c.JoinSubnets = c.ClusterSubnets[:1], c.ServiceCIDRs[:1], c.JoinSubnets[:1]
	c.TransitSubnets, c.Gateway.MasqueradeSubnets, c.Gateway.NodeLocalSubnets = c.TransitSubnets[:1],
		c.Gateway.MasqueradeSubnets[:1], c.Gateway.NodeLocalSubnets[:1]
	v4.Frontends = append(v4.Frontends, frontend("zz-secondary", "10.96.200.1:80", 0, "172.20.0.7:8081"),
		frontend("zz-none", "10.96.200.2:80", 31999))
	slices.SortFunc(v4.Frontends, (*cluster.Frontend).Compare)

	want, problems := plan.Node(v4, "node-001")
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	got, problems := plan.Node(mirror(v4), "node-001")
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	w, g := datapath.Print(comparable(mirror(withoutOther(want, flow.IPv6)))),
		datapath.Print(comparable(withoutOther(got, flow.IP)))
	if w == g {
		return
	}
	wl, gl := strings.Split(w, "\n"), strings.Split(g, "\n")
	for _, l := range wl {
		if !slices.Contains(gl, l) {
			t.Errorf("IPv4 has, mirrored, and IPv6 has not: %s", l)
		}
	}
	for _, l := range gl {
		if !slices.Contains(wl, l) {
			t.Errorf("IPv6 has and IPv4, mirrored, has not: %s", l)
		}
	}
}
