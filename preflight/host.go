package preflight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"

	"hairpin/apply/knft"
	"hairpin/claims"
	"hairpin/hostnet"
	"hairpin/hostnet/uplink"
	"hairpin/netdev"
	"hairpin/report"
)

// neededRuleset has every feature of Hairpin's rulesets that kernels may lack. The kernel checks it
// without applying it.
const neededRuleset = `table inet hairpin-preflight {
	map to { type inet_proto . inet_service : ipv4_addr . inet_service; }
	set ends { type ipv4_addr; flags interval; }
	chain dnat-in { type nat hook prerouting priority -100;
		fib daddr type local dnat ip to meta l4proto . th dport map @to
	}
	chain filter-out { type filter hook postrouting priority 110;
		ct state established,related ct mark 0x3f0 meta mark set ct mark
		ip saddr @ends meta l4proto tcp counter accept
	}
	chain reset-out { type filter hook output priority 0; ip daddr 192.0.2.1 meta l4proto tcp reject with tcp reset; }
	chain snat-out { type nat hook postrouting priority 100; ip saddr @ends masquerade; }
}
`

// nftables checks whether the kernel has the features that Hairpin needs.
func nftables(ctx context.Context, _ *machine) ([]Finding, error) {
	nft, err := knft.New(knft.Config{})
	if err != nil {
		return nil, err
	}
	defer nft.Close()
	refusal, err := nft.Check(ctx, neededRuleset)
	if refusal == nil {
		return nil, err
	}
	return []Finding{finding(Stops, "nftables", "the kernel, or this nft, lacks something that Hairpin needs: "+
		refusal.Error(),
		"load or build nf_tables, nft_nat, nft_masq, nft_fib_inet, nft_reject_inet and nft_ct")}, nil
}

// datapath reports which of Open vSwitch's datapaths the kernel supports.
func datapath(_ context.Context, m *machine) ([]Finding, error) {
	const module = "openvswitch"
	if _, err := os.Stat("/sys/module/" + module); err == nil {
		return nil, nil
	}
	release, err := netdev.Sysctl("kernel/osrelease")
	if err != nil {
		return nil, err
	}
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		if text, err := m.read(filepath.Join("/lib/modules", release, list)); err == nil &&
			bytes.Contains(text, []byte("/"+module+".ko")) {
			return nil, nil
		}
	}
	return []Finding{finding(Info, "kernel", "has no module "+module+
		": Open vSwitch's userspace datapath forwards, slower and with the limits of docs/reference/compatibility.md",
		"a kernel with CONFIG_OPENVSWITCH")}, nil
}

// ranges finds addresses and routes of the machine within the cluster's ranges.
func ranges(_ context.Context, m *machine) (list []Finding, err error) {
	var pods []netip.Prefix
	for _, s := range m.Cluster.ClusterSubnets {
		pods = append(pods, s.CIDR)
	}
	type optionRanges struct {
		option   string
		prefixes []netip.Prefix
	}
	ofCluster := []optionRanges{
		{"[default] cluster-subnets", pods}, {"[kubernetes] service-cidrs", m.Cluster.ServiceCIDRs},
		{"[gateway] join subnets", m.Cluster.JoinSubnets},
		{"[clustermanager] transit subnets", m.Cluster.TransitSubnets},
		{"[gateway] masquerade subnets", m.Cluster.Gateway.MasqueradeSubnets},
	}
	if m.Cluster.DistributedPort() {
		ofCluster = append(ofCluster, optionRanges{"[gateway] node-local subnets", m.Cluster.Gateway.NodeLocalSubnets})
	}
	routes, err := netdev.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: syscall.RT_TABLE_MAIN},
			netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		to, links := netdev.Prefix(r.Dst), linksOf(r)
		if to.Bits() <= 0 || r.Protocol == claims.RouteProtocol || slices.ContainsFunc(links, m.own) {
			continue
		}
		where := "without a link"
		if len(links) > 0 {
			where = "dev " + links[0].Name
		}
		for _, x := range ofCluster {
			for _, p := range x.prefixes {
				if p.Overlaps(to) {
					list = append(list, finding(Stops, fmt.Sprintf("route %s %s", to, where),
						fmt.Sprintf("overlaps %s of %s: one of the two would not be reached", p, x.option),
						"another range for "+x.option+", or remove the route if it is a former network's"))
				}
			}
		}
	}
	return list, nil
}

// linksOf returns the links of a route: several if it is a multipath route, none if it is a
// blackhole.
func linksOf(r netlink.Route) (list []*netlink.LinkAttrs) {
	for _, h := range netdev.NextHops(&r) {
		if l, err := netlink.LinkByIndex(h.LinkIndex); err == nil {
			list = append(list, l.Attrs())
		}
	}
	return list
}

// own reports whether Hairpin or OVN-Kubernetes makes a link of this name.
func (m *machine) own(link *netlink.LinkAttrs) bool {
	return slices.Contains([]string{claims.ManagementPort, m.Cluster.Gateway.Interface, claims.EncapHost,
		claims.EncapBridge, claims.LocalPort, claims.LocalBridge}, link.Name)
}

// mtu compares the MTU of the default routes' devices with the MTU that pods need in a tunnel.
func mtu(_ context.Context, m *machine) (list []Finding, err error) {
	for _, f := range []struct{ family, overhead int }{{netlink.FAMILY_V6, hostnet.Overhead6},
		{netlink.FAMILY_V4, hostnet.Overhead4}} {
		routes, err := netdev.List(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(f.family, &netlink.Route{}, netlink.RT_FILTER_DST)
		})
		if err != nil {
			return nil, fmt.Errorf("list default routes: %w", err)
		}
		for _, r := range routes {
			for _, link := range linksOf(r) {
				if !slices.ContainsFunc(list, func(f Finding) bool { return f.Object == "link "+link.Name }) {
					list = append(list, smallMTU(m, link, f.overhead)...)
				}
			}
		}
	}
	return list, nil
}

func smallMTU(m *machine, link *netlink.LinkAttrs, overhead int) []Finding {
	if link.MTU >= m.Cluster.MTU+overhead {
		return nil
	}
	return []Finding{finding(Stops, "link "+link.Name,
		fmt.Sprintf("has an MTU of %d; pods' packets of %d bytes ([default] mtu) need %d in a tunnel", link.MTU,
			m.Cluster.MTU, m.Cluster.MTU+overhead),
		fmt.Sprintf("[default] mtu = %d, on every node", link.MTU-overhead))}
}

// advertised finds missing addresses of the bridge of mode detached.
func advertised(ctx context.Context, m *machine) (list []Finding, err error) {
	missing, err := hostnet.Unadvertised(m.Cluster)
	if err != nil || len(missing) == 0 {
		return nil, err
	}
	bridgeStays := false
	err = withForeign(ctx, m, func(b *uplink.Foreign) error {
		bridgeStays = b.Refusal != nil
		return nil
	})
	for _, a := range missing {
		f := finding(Info, "address "+a.String(),
			"is on no link: an API server that advertises it cannot start before the agent",
			"run `hairpin advertise` at every boot before it")
		if !bridgeStays { // Advertise would add the address to a bridge that must be removed first
			f.Fix = []string{"hairpin advertise"}
			f.fix = func(context.Context) ([]string, error) { return hostnet.Advertise(m.Cluster) }
			f.fixOrder = addressOrder
		}
		list = append(list, f)
	}
	return list, err
}

// ports tries to listen on the agent's ports, unless an agent runs.
func ports(ctx context.Context, m *machine) (list []Finding, err error) {
	if dir, err := m.at(m.Process.RunDir); err == nil {
		if agent, err := new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, report.AgentSocket)); err == nil {
			return nil, agent.Close()
		}
	}
	var l net.ListenConfig
	for option, addresses := range map[string][]netip.AddrPort{"[default] healthz-bind-address": m.Process.Healthz,
		"[default] metrics-bind-address": m.Process.Metrics} {
		for _, a := range addresses {
			s, err := l.Listen(ctx, "tcp", a.String())
			if errors.Is(err, syscall.EADDRINUSE) {
				list = append(list, finding(Stops, "tcp "+a.String(), "is in use: the agent cannot listen there ("+option+
					")", "end the program that listens (ss -ltnp), or another "+option))
			} else if err == nil {
				_ = s.Close()
			}
		}
	}
	return list, nil
}
