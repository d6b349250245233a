package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/attack"
	"hairpin/lab/probe"
)

// byAddresses names what keeps pods from the datapath's internal addresses.
const byAddresses = "policies of the cluster router, nft on the host"

// addressAttacks returns attacks of a pod on addresses that only Hairpin's own components use.
func addressAttacks() []Attack {
	var list []Attack
	for _, f := range families() {
		masqHost := nth(f.masquerade, 2)
		for _, x := range []struct{ by, to string }{{"by the router", ""}, {"past the router", "host-a"}} {
			list = append(list, Attack{Who: attacker,
				What: fmt.Sprintf("connects to the host at %s, %s", masqHost, x.by), By: byAddresses, Group: "inside " +
					f.name,
				try: func(ctx context.Context, w *world) (outcome,
					error) {
					return w.reachHost(ctx, f, masqHost, x.to)
				}})
		}
		list = append(list, Attack{Who: attacker, What: "connects to NodePorts at masquerade addresses of IPv" + f.name,
			By: byAddresses, Group: "inside " + f.name,
			try: func(ctx context.Context, w *world) (outcome, error) { return w.askMasquerade(ctx, f) }})
		list = append(list, Attack{Who: attacker, What: "pings masquerade, join and transit addresses of IPv" + f.name,
			By: byAddresses, Group: "inside " + f.name,
			try: func(ctx context.Context, w *world) (outcome, error) { return w.pingInside(ctx, f) }})
	}
	return list
}

func nth(p netip.Prefix, n int) netip.Addr {
	a := p.Masked().Addr()
	for range n {
		a = a.Next()
	}
	return a
}

// reachHost sends datagrams to an internal address of the host, and legitimate ones to the node's
// address.
func (w *world) reachHost(ctx context.Context, f family, inside netip.Addr, direct string) (outcome, error) {
	from, host := w.endpoints[attacker], w.endpoints["host-a"]
	ear, mac, err := w.facing(host)
	if err != nil {
		return outcome{}, err
	}
	defer ear.Close()
	next := w.gatewayMAC()
	if direct != "" {
		if next, err = attack.MAC(host.place, claims.ManagementPort); err != nil {
			return outcome{}, err
		}
	}
	to := func(a netip.Addr) func([]byte) []byte {
		return func(mark []byte) []byte {
			return attack.Frame(mac, next,
				attack.UDP(netip.AddrPortFrom(from.address(f), 40000), netip.AddrPortFrom(a, ear.Port), mark))
		}
	}
	return w.beside(ctx, from.place, ear, to(host.address(f)), to(inside))
}

// askMasquerade sends requests to the NodePorts of all Services at all masquerade addresses. Some
// of these addresses serve NodePorts for the host.
func (w *world) askMasquerade(ctx context.Context, f family) (outcome, error) {
	from := w.endpoints[attacker].place
	ask := func(to netip.AddrPort) probe.Answer {
		return lab.Get(ctx, from, probe.Request{Protocol: "udp", To: to, Timeout: w.patience()})
	}
	var ports []uint16
	for _, s := range w.services {
		if s.nodePort != 0 {
			ports = append(ports, s.nodePort)
		}
	}
	slices.Sort(ports)
	results := make(chan string, 8*len(ports))
	var asked int
	for place := range claims.MasqAddresses {
		// Here the node switch has this address, for the host. It leads to pods on this node, which
		// the attacker can also reach directly.
		if place == claims.MasqLocal && !w.shared {
			continue
		}
		for _, port := range ports {
			asked++
			go func() {
				to := netip.AddrPortFrom(nth(f.masquerade, place), port)
				if a := ask(to); a.Error == "" {
					results <- fmt.Sprintf("%s answered at %s", a.Name, to)
					return
				}
				results <- ""
			}()
		}
	}
	var got []string
	for range asked {
		if r := <-results; r != "" {
			got = append(got, r)
		}
	}
	honest, err := w.target(Case{To: "podlocal", Path: "ClusterIP"}, f)
	if err != nil {
		return outcome{}, err
	}
	if a := ask(honest); a.Error != "" {
		return outcome{}, fmt.Errorf("%s: %s", honest, a.Error)
	}
	if len(got) > 0 {
		slices.Sort(got)
		return takenWith("%s; %d answers", got[0], len(got)), nil
	}
	return refusedWith("none of %d NodePorts answered", asked), nil
}

// pingInside pings every internal address, and the pod's gateway, which replies.
func (w *world) pingInside(ctx context.Context, f family) (outcome, error) {
	from := w.endpoints[attacker].place
	ear, err := attack.Listen(from, podLink)
	if err != nil {
		return outcome{}, err
	}
	defer ear.Close()
	mac, err := attack.MAC(from, podLink)
	if err != nil {
		return outcome{}, err
	}
	source := w.endpoints[attacker].address(f)
	ping := func(to netip.Addr, next cluster.MAC, mark []byte) error {
		return attack.Send(from, podLink, attack.Frame(mac, next, attack.Echo(source, to, mark)))
	}
	limit := w.longer(300 * time.Millisecond)
	gateway := w.gatewayMAC()
	honest := func() error {
		return w.until(ctx, "the pod's gateway", func() error {
			mark := newMark("ping")
			if err := ping(w.gateway(f), gateway, mark); err != nil {
				return err
			}
			if ear.Hear(ctx, limit, contains(mark)) == nil {
				return errors.New("it did not answer a ping")
			}
			return nil
		})
	}
	if err := honest(); err != nil {
		return outcome{}, err
	}
	mp0, err := attack.MAC(w.endpoints["host-a"].place, claims.ManagementPort)
	if err != nil {
		return outcome{}, err
	}
	inside := w.insideAddresses(f)
	marks := map[netip.Addr][]byte{}
	for _, a := range inside {
		marks[a] = newMark("ping")
		if err := errors.Join(ping(a, gateway, marks[a]), ping(a, mp0, marks[a])); err != nil {
			return outcome{}, err
		}
	}
	var got []string
	for ear.Hear(ctx, limit, func(b []byte) bool {
		for a, mark := range marks {
			if bytes.Contains(b, mark) {
				got = append(got, a.String())
				delete(marks, a)
				return true
			}
		}
		return false
	}) != nil {
	}
	if len(got) > 0 {
		return takenWith("%s answered", strings.Join(got, ", ")), nil
	}
	return refusedWith("none of %d addresses answered", len(inside)), honest()
}

// insideAddresses returns the masquerade, join and transit addresses in use, except those of the
// pod's own router.
func (w *world) insideAddresses(f family) []netip.Addr {
	var list []netip.Addr
	for place := 1; place < claims.MasqAddresses; place++ {
		list = append(list, nth(f.masquerade, place))
	}
	for name, n := range w.nodes {
		list = append(list, nth(f.joins, n.id+1))
		if name != "node-a" {
			list = append(list, nth(f.transits, n.id+1))
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}
