package trust_test

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/cluster/trust"
)

// accepted computes in one pass over all nodes what a Vetting maintains incrementally: the rejected
// nodes, and the node of each address.
func accepted(nodes []*cluster.Node, first string,
	config *cluster.Config) (rejected []string, hosts map[netip.Addr]string) {
	byAge := slices.SortedFunc(slices.Values(nodes), func(a, b *cluster.Node) int {
		switch first {
		case a.Name:
			return -1
		case b.Name:
			return 1
		}
		return a.CompareAge(b)
	})
	ids, ends, ranges, networks := map[int]string{}, map[netip.Addr]string{}, []netip.Prefix{},
		map[netip.Prefix]map[string]bool{}
	for _, n := range byAge {
		bad := false
		if n.ID != 0 {
			ids[n.ID] = cmp.Or(ids[n.ID], n.Name)
			bad = ids[n.ID] != n.Name
		}
		for _, a := range n.Addresses {
			ends[a] = cmp.Or(ends[a], n.Name)
			bad = bad || ends[a] != n.Name
		}
		for _, c := range n.PodCIDRs {
			switch {
			case slices.ContainsFunc(ranges, c.Overlaps), !slices.ContainsFunc(config.ClusterSubnets,
				func(s cluster.ClusterSubnet) bool { return s.CIDR.Overlaps(c) && s.CIDR.Bits() <= c.Bits() }):
				bad = true
			default:
				ranges = append(ranges, c)
			}
		}
		if bad && n.Name != first {
			rejected = append(rejected, n.Name)
		}
		for _, p := range n.HostAddresses {
			if networks[p.Masked()] == nil {
				networks[p.Masked()] = map[string]bool{}
			}
			networks[p.Masked()][n.Name] = true
		}
	}
	hosts = maps.Clone(ends)
	for _, n := range byAge {
		for _, p := range n.HostAddresses {
			a := p.Addr()
			near := func(q netip.Prefix) bool {
				site := 48
				if q.Addr().Is4() {
					site = 16
				}
				return q.Contains(a) && (!q.IsSingleIP() && len(networks[q.Masked()]) > 1 || q.Bits() >= site &&
					slices.ContainsFunc(n.Addresses, q.Contains))
			}
			if a.IsPrivate() || slices.ContainsFunc(n.HostAddresses, near) {
				hosts[a] = cmp.Or(hosts[a], n.Name)
			}
		}
	}
	slices.Sort(rejected)
	return rejected, hosts
}

// claiming draws a node with claims that other nodes may make as well.
func claiming(t *rapid.T, name string) *cluster.Node {
	some := func(label string, from ...string) []string {
		return rapid.SliceOfNDistinct(rapid.SampledFrom(from), 0, 3, rapid.ID[string]).Draw(t, label)
	}
	n := &cluster.Node{Name: name, UID: name, ID: rapid.IntRange(0, 4).Draw(t, "id"),
		Created: time.Unix(int64(rapid.IntRange(0, 3).Draw(t, "age")), 0)}
	for _, a := range some("address", "172.18.0.3", "172.18.0.4", "9.9.9.3", "9.9.9.4", "fd00::3") {
		n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
	}
	for _, a := range some("host", "172.18.0.3/16", "172.18.0.9/32", "9.9.9.3/24", "9.9.9.7/24", "9.9.9.8/32",
		"8.8.8.8/32", "8.8.8.8/24", "8.8.8.9/24", "fd00::3/64", "2001:db8::1/64", "2001:db8::2/64") {
		n.HostAddresses = append(n.HostAddresses, netip.MustParsePrefix(a))
	}
	for _, c := range some("range", "10.244.1.0/24", "10.244.2.0/24", "10.244.2.0/25", "10.244.2.128/25",
		"10.244.0.0/22", "10.9.0.0/24", "fd00:10:244:1::/64") {
		n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(c))
	}
	return n
}

// TestVettingIsVet: after any history of the nodes, a Vetting accepts the same as Vet, and its
// changes are the difference.
func TestVettingIsVet(t *testing.T) {
	config := cluster.DefaultConfig()
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.SampledFrom([]string{"", "b"}).Draw(t, "first")
		vetting := trust.NewVetting(first, config.ClusterSubnets)
		nodes, last := map[string]*cluster.Node{}, &trust.Vetted{}
		for step := range rapid.IntRange(1, 12).Draw(t, "steps") {
			for range rapid.IntRange(0, 3).Draw(t, "changes") {
				name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "node")
				if delete(nodes, name); rapid.IntRange(0, 3).Draw(t, "what") > 0 {
					nodes[name] = claiming(t, name)
				}
			}
			var list []*cluster.Node
			for _, name := range slices.Sorted(maps.Keys(nodes)) {
				list = append(list, nodes[name])
			}
			got, changes := vetting.Vet(list)
			rejected, hosts := accepted(list, first, &config)
			same := func(what string, got, want any) {
				if diff := gocmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
					t.Fatalf("step %d: %s (-want +got):\n%s", step, what, diff)
				}
			}
			same("rejected", slices.Sorted(maps.Keys(got.Rejected)), rejected)
			same("hosts", got.Hosts.Plain(), hosts)
			fresh := trust.Vet(list, first, &config)
			same("problems", got.Rejected, fresh.Rejected)
			same("untrusted", got.Untrusted, fresh.Untrusted)
			same("ranges", trust.RangesOf(got), trust.RangesOf(fresh))

			before, was := maps.Collect(last.Hosts.All()), map[netip.Addr]string{}
			for _, pair := range [][2]map[netip.Addr]string{{before, hosts}, {hosts, before}} {
				for a := range pair[0] {
					if pair[0][a] != pair[1][a] {
						was[a] = before[a]
					}
				}
			}
			same("changes of hosts", changes.Hosts, was)
			var other []string
			for _, name := range []string{"a", "b", "c", "d", "e"} {
				if (len(last.Rejected[name]) > 0) != (len(got.Rejected[name]) > 0) {
					other = append(other, name)
				}
			}
			slices.Sort(changes.Rejected)
			same("changes of what is rejected", changes.Rejected, other)
			last = got
		}
	})
}

// BenchmarkVetting adds a node to a thousand and removes it, and compares with vetting all of them.
func BenchmarkVetting(b *testing.B) {
	config := cluster.DefaultConfig()
	var all []*cluster.Node
	for i := range 1001 {
		a := netip.AddrFrom4([4]byte{172, 18, byte(i / 250), byte(i % 250)})
		all = append(all, &cluster.Node{Name: fmt.Sprintf("n%05d", i), ID: i + 1, Addresses: []netip.Addr{a},
			HostAddresses: []netip.Prefix{netip.PrefixFrom(a, 16)},
			PodCIDRs:      []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.%d/26", i/4, i%4*64))}})
	}
	begin := time.Now()
	if v := trust.Vet(all, "", &config); len(v.Rejected) > 0 {
		b.Fatal(fmt.Sprint(v.Rejected))
	}
	whole := time.Since(begin)
	vetting := trust.NewVetting("", config.ClusterSubnets)
	vetting.Vet(all)
	b.ReportAllocs()
	for b.Loop() {
		vetting.Vet(all[:1000])
		vetting.Vet(all)
	}
	b.ReportMetric(float64(whole)*float64(2*b.N)/float64(b.Elapsed()), "x-all")
}
