// Package clustertest makes values of package cluster for tests.
package clustertest

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"pgregory.net/rapid"

	"hairpin/cluster"
)

var (
	addr   = netip.MustParseAddr
	prefix = netip.MustParsePrefix
)

func mac(s string) cluster.MAC {
	m, err := cluster.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

// Node makes a dual-stack node with a pod range of number id. octet is the end of its address in
// 172.18.0.0/16, as in 172.18.0.3 for 3, and in fc00:f853:ccd::/64.
func Node(name string, id, octet int) *cluster.Node {
	v4, v6 := addr(fmt.Sprintf("172.18.%d.%d", octet/256, octet%256)), addr(fmt.Sprintf("fc00:f853:ccd::%x", octet))
	return &cluster.Node{
		Name: name, ID: id,
		Addresses:     []netip.Addr{v4, v6},
		HostAddresses: []netip.Prefix{netip.PrefixFrom(v4, 16), netip.PrefixFrom(v6, 64)},
		PodCIDRs: []netip.Prefix{prefix(fmt.Sprintf("10.244.%d.0/24", id)),
			prefix(fmt.Sprintf("fd00:10:244:%x::/64", id))},
		Gateway: cluster.Gateway{
			Mode: "shared", Bridge: "breth0", Uplink: "eth0",
			MAC:       mac(fmt.Sprintf("02:42:ac:12:%02x:%02x", octet/256, octet%256)),
			Addresses: []netip.Prefix{netip.PrefixFrom(v4, 16), netip.PrefixFrom(v6, 64)},
			NextHops:  []netip.Addr{addr("172.18.0.1"), addr("fc00:f853:ccd::1")},
		},
	}
}

// Snapshot makes a Snapshot of objects, sorted as a Store would.
func Snapshot(objects ...any) *cluster.Snapshot {
	s := &cluster.Snapshot{Config: cluster.DefaultConfig()}
	for _, o := range objects {
		switch o := o.(type) {
		case *cluster.Node:
			s.Nodes = append(s.Nodes, o)
		case *cluster.Pod:
			s.Pods = append(s.Pods, o)
		case *cluster.Frontend:
			s.Frontends = append(s.Frontends, o)
		case []*cluster.Frontend:
			s.Frontends = append(s.Frontends, o...)
		}
	}
	slices.SortFunc(s.Nodes, (*cluster.Node).Compare)
	slices.SortFunc(s.Pods, (*cluster.Pod).Compare)
	slices.SortFunc(s.Frontends, (*cluster.Frontend).Compare)
	return s
}

func Pod(node, name string, ips ...string) *cluster.Pod {
	p := &cluster.Pod{Owner: cluster.Owner{Kind: "Pod", Namespace: "default", Name: name}, Node: node}
	for _, ip := range ips {
		p.IPs = append(p.IPs, addr(ip))
	}
	p.MAC = cluster.MACFor(p.IPs[0])
	return p
}

// EgressNode makes a node that may carry egress addresses.
func EgressNode(name string, id, octet int) *cluster.Node {
	n := Node(name, id, octet)
	n.Egress = cluster.NodeEgress{Assignable: true, Ready: true}
	return n
}

// EgressIP makes an EgressIP for all pods; age orders them, 0 is the oldest.
func EgressIP(name string, age int, addresses ...string) *cluster.EgressIP {
	e := &cluster.EgressIP{Owner: cluster.Owner{Kind: "EgressIP", Name: name}, Created: time.Unix(int64(1000+age), 0)}
	for _, a := range addresses {
		e.Addresses = append(e.Addresses, addr(a))
	}
	return e
}

func DrawEgressIP(t *rapid.T) *cluster.EgressIP {
	pool := []string{"172.18.0.33", "172.18.0.44", "172.18.0.55", "172.18.0.3", "fc00:f853:ccd::33",
		"fc00:f853:ccd::44", "10.10.10.33", "10.10.10.44", "192.0.2.1"}
	e := EgressIP(rapid.StringMatching("[a-f]").Draw(t, "name"), rapid.IntRange(0, 2).Draw(t, "age"),
		rapid.SliceOfNDistinct(rapid.SampledFrom(pool), 1, 4, rapid.ID).Draw(t, "addresses")...)
	if rapid.IntRange(0, 2).Draw(t, "selects nodes") == 0 {
		e.Nodes = &cluster.Selector{}
		if rapid.Bool().Draw(t, "by label") {
			e.Nodes.Requirements = []cluster.Requirement{{Key: "edge", Operator: "Exists"}}
		}
	}
	e.Releases = rapid.IntRange(0, 3).Draw(t, "releases") == 0
	return e
}

// ManyEgressIPs makes the benchmark's cluster: EgressIPs of two addresses, on nodes that all may
// carry them, and for each ten pods.
func ManyEgressIPs(nodes, egressIPs, pods int) *cluster.Snapshot {
	var objects []any
	for i := range nodes {
		objects = append(objects, EgressNode(fmt.Sprintf("node-%03d", i), i+1, i+3))
	}
	for i := range pods {
		n, o := i%nodes, 3+i/nodes
		p := Pod(fmt.Sprintf("node-%03d", n), fmt.Sprintf("pod-%05d", i), fmt.Sprintf("10.244.%d.%d", n+1, o),
			fmt.Sprintf("fd00:10:244:%x::%x", n+1, o))
		p.Labels = map[string]string{"app": fmt.Sprint("app-", i%egressIPs), "pod-template-hash": fmt.Sprint(i % 977),
			"name": p.Owner.Name}
		objects = append(objects, p)
	}
	s := Snapshot(objects...)
	s.Namespaces = []*cluster.Namespace{{Name: "default",
		Labels: map[string]string{"kubernetes.io/metadata.name": "default"}}}
	for i := range egressIPs {
		e := EgressIP(fmt.Sprintf("eip-%04d", i), i, fmt.Sprintf("172.18.%d.%d", 100+i/200, 1+i%200),
			fmt.Sprintf("fc00:f853:ccd::1:%x", i))
		e.Pods = cluster.Selector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In",
			Values: []string{fmt.Sprint("app-", i)}}}}
		s.EgressIPs = append(s.EgressIPs, e)
	}
	return s
}

// Edit removes an element, adds one, or replaces one by another that compare orders as equal. The
// list stays sorted and without duplicates, as a Store's.
func Edit[T any](t *rapid.T, old []T, draw func(*rapid.T) T, compare func(a, b T) int) []T {
	list := slices.Clone(old)
	if len(list) > 0 && rapid.Bool().Draw(t, "remove") {
		i := rapid.IntRange(0, len(list)-1).Draw(t, "which")
		list = slices.Delete(list, i, i+1)
	}
	if x := draw(t); rapid.IntRange(0, 3).Draw(t, "add") > 0 {
		i, found := slices.BinarySearchFunc(list, x, compare)
		if found {
			list[i] = x
		} else {
			list = slices.Insert(list, i, x)
		}
	}
	return list
}
