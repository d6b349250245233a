package cni_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/ovsdb"
)

// byHand binds ports as an administrator would: without agent, addresses and plan.
type byHand struct {
	b       *testing.B
	n       *lab.Node
	nb, ovs *ovsdb.Client
}

func newByHand(b *testing.B, n *lab.Node) *byHand {
	h := &byHand{b: b, n: n}
	open := func(path, database string, tables ...ovsdb.Table) *ovsdb.Client {
		c, err := ovsdb.Open(ovsdb.Config{Endpoint: "unix:" + n.Path(path), Database: database, Tables: tables})
		must(b, err)
		b.Cleanup(c.Close)
		must(b, c.WaitSynced(b.Context()))
		return c
	}
	h.nb = open("/run/ovn/ovnnb_db.sock", "OVN_Northbound", ovsdb.Mirror[logicalPort]("name"))
	h.ovs = open("/run/openvswitch/db.sock", "Open_vSwitch", ovsdb.Mirror[ovsdb.Interface](),
		ovsdb.Mirror[ovsdb.Port]("name"))
	return h
}

// bind makes a port of the node switch, a veth pair, and the interface on br-int. It waits until
// ovn-controller reports its flows as installed: this is OVN's own time.
func (h *byHand) bind(i int) time.Duration {
	ctx, cancel := context.WithTimeout(h.b.Context(), 30*time.Second)
	defer cancel()
	name, dev := fmt.Sprintf("byhand-%d", i), fmt.Sprintf("byhand%d", i)
	begin := time.Now()
	lsp := ovsdb.NamedUUID("lsp")
	_, err := h.nb.Transact(ctx,
		ovsdb.Insert(logicalPort{UUID: lsp, Name: name,
			Addresses: []string{fmt.Sprintf("0a:58:0a:f4:01:%02x 10.244.1.%d fd00:10:244:1::%x", 200+i, 200+i, 200+
				i)}}),
		ovsdb.Mutate("Logical_Switch", ovsdb.InsertInto("ports", lsp)).Where("name", "==", h.n.Name()))
	must(h.b, err)
	must(h.b, h.n.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Flags = dev, net.FlagUp
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: dev + "p"})
	}))
	iface, port := ovsdb.NamedUUID("interface"), ovsdb.NamedUUID("port")
	_, err = h.ovs.Transact(ctx,
		ovsdb.Insert(ovsdb.Interface{UUID: iface, Name: dev, ExternalIDs: map[string]string{"iface-id": name}}),
		ovsdb.Insert(ovsdb.Port{UUID: port, Name: dev, Interfaces: []ovsdb.UUID{iface}}),
		ovsdb.Mutate("Bridge", ovsdb.InsertInto("ports", port)).Where("name", "==", "br-int"))
	must(h.b, err)
	must(h.b, h.ovs.WaitFor(ctx, func(v ovsdb.View) bool {
		for r := range ovsdb.Rows[ovsdb.Interface](v) {
			if r.Name == dev {
				return r.ExternalIDs["ovn-installed"] == "true"
			}
		}
		return false
	}))
	return time.Since(begin)
}

// unbind removes what bind made.
func (h *byHand) unbind(i int) {
	ctx, cancel := context.WithTimeout(h.b.Context(), 30*time.Second)
	defer cancel()
	name, dev := fmt.Sprintf("byhand-%d", i), fmt.Sprintf("byhand%d", i)
	for p := range ovsdb.Rows[ovsdb.Port](h.ovs.View()) {
		if p.Name == dev {
			_, err := h.ovs.Transact(ctx,
				ovsdb.Mutate("Bridge", ovsdb.DeleteFrom("ports", p.UUID)).Where("name", "==", "br-int"))
			must(h.b, err)
		}
	}
	for p := range ovsdb.Rows[logicalPort](h.nb.View()) {
		if p.Name == name {
			_, err := h.nb.Transact(ctx,
				ovsdb.Mutate("Logical_Switch", ovsdb.DeleteFrom("ports", p.UUID)).Where("name", "==", h.n.Name()))
			must(h.b, err)
		}
	}
	must(h.b, h.n.Do(func() error {
		link, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}))
}

// BenchmarkAdd measures the time of `hairpin cni` ADD, from the start of the process to its end, on
// a node of each engine with 1 000 Services. In turn with it, it measures OVN's own time to bind a
// port by hand.
func BenchmarkAdd(b *testing.B) {
	w := newWorld(b)
	endpoints := []netip.Addr{netip.MustParseAddr("10.244.9.9"), netip.MustParseAddr("fd00:10:244:9::9")}
	var services strings.Builder
	for i := range 1000 {
		services.WriteString(serviceManifest(i, endpoints) + "---\n")
	}
	w.manifest("services.yaml", services.String())
	var nodes []*lab.Node
	engines := []string{cluster.EngineOVN, cluster.EngineOpenFlow}
	for i, engine := range engines {
		w.manifest(engine+".yaml", nodeManifest(i+1, usualCIDRs(i+1)))
		w.engine = engine
		nodes = append(nodes, w.node(i+1))
	}
	for _, n := range nodes {
		w.start(n)
		w.ready(n)
		sh(b, n, "ovn-nbctl --wait=hv --timeout=60 sync") // the flows of all Services are installed
	}
	h := newByHand(b, nodes[0])
	spent := func(i int) time.Duration {
		u, err := nodes[i].Used(agent)
		must(b, err)
		return u.CPU
	}
	before := []time.Duration{spent(0), spent(1)}
	const rounds = 100
	times := map[string][]time.Duration{}
	took := func(what string, begin time.Time) { times[what] = append(times[what], time.Since(begin)) }
	for i := range rounds {
		times["by-hand"] = append(times["by-hand"], h.bind(i%50))
		h.unbind(i % 50)
		for j, n := range nodes {
			s := w.sandbox(n, fmt.Sprintf("pod-%d", i))
			begin := time.Now()
			s.add()
			took(engines[j], begin)
			s.del()
		}
		begin := time.Now()
		must(b, w.plugin(nodes[0], "VERSION", nil, nil).err)
		took("process", begin)
	}
	for i, engine := range engines { // including DEL, and the agent's work meanwhile
		b.ReportMetric(ms(spent(i)-before[i])/rounds, engine+"-agent-cpu-ms")
	}
	for what, list := range times {
		slices.Sort(list)
		b.ReportMetric(ms(list[len(list)/2]), what+"-p50-ms")
		b.ReportMetric(ms(list[(len(list)-1)*99/100]), what+"-p99-ms")
	}
	b.ReportMetric(0, "ns/op")
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// logicalPort is a row of Logical_Switch_Port.
type logicalPort struct {
	UUID      ovsdb.UUID `ovsdb:"_uuid"`
	Name      string     `ovsdb:"name"`
	Addresses []string   `ovsdb:"addresses"`
}

func (logicalPort) Table() string { return "Logical_Switch_Port" }
