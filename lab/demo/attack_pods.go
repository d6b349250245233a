package demo

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/attack"
)

// Names of what rejects packets of pods.
const (
	byPortSecurity = "flows of br-svc, or with service-engine = ovn OVN's port security"
	byACL          = "flows of br-svc, or with service-engine = ovn an ACL of the node switch"
	byDeafness     = "interfaces of pods and of the host ignore router advertisements (accept_ra=0); br-svc drops them"
)

// Places and links in the demo that attacks use.
const (
	attacker  = "pod-a2"
	neighbour = "pod-a1" // on the same node
	podLink   = "eth0"
)

func stranger(f family) netip.Addr {
	if f.name == "4" {
		return netip.MustParseAddr("198.51.100.7")
	}
	return netip.MustParseAddr("2001:db8:51::7")
}

// podAttacks returns attacks of a pod with spoofed addresses.
func podAttacks() []Attack {
	var list []Attack
	for _, f := range families() {
		for _, x := range []struct{ what, as, to string }{
			{"from another pod's address, to an external client", neighbour, clientName},
			{"from another pod's address, to a pod on another node", neighbour, "pod-b1"},
			{"from another pod's address, to the host", neighbour, "host-a"},
			{"from an unassigned address, to another pod", "", neighbour},
			{"from an unassigned address, to the host", "", "host-a"},
			{"from a client's address, to the host", clientName, "host-a"},
			{"from another node's address, to the host", "host-b", "host-a"},
		} {
			list = append(list, Attack{Who: attacker, What: "sends IPv" + f.name + " " + x.what, By: byPortSecurity,
				Group: "forge",
				try: func(ctx context.Context, w *world) (outcome,
					error) {
					return w.forge(ctx, f, x.as, x.to, false)
				}})
		}
		list = append(list, Attack{Who: attacker, What: "sends IPv" + f.name +
			" from another pod's address and MAC, to an external client", By: byPortSecurity, Group: "forge",
			try: func(ctx context.Context, w *world) (outcome, error) {
				return w.forge(ctx, f, neighbour, clientName, true)
			}})
	}
	return append(append(list, linkAttacks()...), dhcpAttacks()...)
}

// dhcpAttacks returns attacks with unsolicited replies to DHCP clients.
func dhcpAttacks() []Attack {
	var list []Attack
	for _, f := range families() {
		for _, x := range []struct {
			what, to, link string
			everybody      bool
		}{
			{"another pod", neighbour, podLink, false},
			{"all pods", neighbour, podLink, true},
			{"the host", "host-a", claims.ManagementPort, false},
		} {
			list = append(list, Attack{Who: attacker, What: "sends DHCP replies over IPv" + f.name + " to " + x.what,
				By: byACL,
				try: func(ctx context.Context, w *world) (outcome, error) {
					return w.offer(ctx, f, x.to, x.link, x.everybody)
				}})
			if x.to == neighbour {
				list = append(list, Attack{Who: attacker, What: "sends DHCP replies over IPv" + f.name +
					" in fragments to " + x.what, By: byFragments,
					Group: "fragments", Not: noFragments, try: func(ctx context.Context, w *world) (outcome, error) {
						return w.offerInParts(ctx, f, x.everybody)
					}})
			}
		}
	}
	return list
}

// linkAttacks returns attacks with frames to a pod's neighbours that claim another sender.
func linkAttacks() []Attack {
	try := func(frame func(w *world, mac cluster.MAC) []byte) func(context.Context, *world) (outcome, error) {
		return func(ctx context.Context, w *world) (outcome, error) { return w.pretend(ctx, frame) }
	}
	f4, f6 := families()[0], families()[1]
	return []Attack{
		{Who: attacker, What: "claims the gateway's address by ARP", By: byPortSecurity,
			try: try(func(w *world, mac cluster.MAC) []byte { return attack.ARPReply(mac, w.gateway(f4)) })},
		{Who: attacker, What: "claims another pod's address by ARP", By: byPortSecurity,
			try: try(func(w *world, mac cluster.MAC) []byte {
				return attack.ARPReply(mac, w.endpoints[neighbour].address(f4))
			})},
		{Who: attacker, What: "claims the gateway's address by neighbor discovery", By: byPortSecurity,
			try: try(func(w *world,
				mac cluster.MAC) []byte {
				return attack.NeighborAdvertisement(mac, w.gateway(f6))
			})},
		{Who: attacker, What: "announces its own address by ARP with another pod's MAC", By: byPortSecurity,
			try: try(func(w *world, mac cluster.MAC) []byte {
				return attack.ARPAnnouncement(mac, w.macOf(neighbour), w.endpoints[attacker].address(f4))
			})},
		{Who: attacker, What: "advertises its own address with another pod's MAC", By: byPortSecurity,
			try: try(func(w *world, mac cluster.MAC) []byte {
				return attack.Advertise(mac, attack.LinkLocal(mac), w.endpoints[attacker].address(f6),
					w.macOf(neighbour))
			})},
		{Who: attacker, What: "advertises its own address from the gateway's", By: byPortSecurity,
			try: try(func(w *world, mac cluster.MAC) []byte {
				return attack.Advertise(mac, w.gateway(f6), w.endpoints[attacker].address(f6), mac)
			})},
		{Who: attacker, What: "sends router advertisements to another pod", By: byDeafness,
			try: func(ctx context.Context, w *world) (outcome, error) { return w.advertise(ctx, neighbour, podLink) }},
		{Who: attacker, What: "sends router advertisements to the host", By: byDeafness,
			try: func(ctx context.Context, w *world) (outcome, error) {
				return w.advertise(ctx, "host-a", claims.ManagementPort)
			}},
	}
}

// macOf returns the MAC of a pod in the demo, which follows from its IPv4 address.
func (w *world) macOf(pod string) cluster.MAC {
	return cluster.MACFor(w.endpoints[pod].address(families()[0]))
}

// gateway returns the address of the router of the attacker's node.
func (w *world) gateway(f family) netip.Addr {
	for _, p := range w.nodes["node-a"].podCIDRs {
		if p.Addr().Is4() == (f.name == "4") {
			return p.Masked().Addr().Next()
		}
	}
	return netip.Addr{}
}

// gatewayMAC returns the MAC to which pods of the attacker's node send packets to be routed.
func (w *world) gatewayMAC() cluster.MAC { return cluster.MACFor(w.gateway(families()[0])) }

// facing listens for the datagrams that arrive at a target, and returns the attacker's MAC, from
// which they come.
func (w *world) facing(target endpoint) (*attack.Ear, cluster.MAC, error) {
	ear, err := attack.ListenUDP(target.place, 0)
	if err != nil {
		return nil, cluster.MAC{}, err
	}
	mac, err := attack.MAC(w.endpoints[attacker].place, podLink)
	if err != nil {
		ear.Close()
	}
	return ear, mac, err
}

// forge sends datagrams with the source address of another place or an unknown one, and legitimate
// ones beside them.
func (w *world) forge(ctx context.Context, f family, as, to string, withMAC bool) (outcome, error) {
	from, target := w.endpoints[attacker], w.endpoints[to]
	ear, mac, err := w.facing(target)
	if err != nil {
		return outcome{}, err
	}
	defer ear.Close()
	next := w.gatewayMAC()
	// on the switch, past the router
	if link, ok := map[string]string{neighbour: podLink, "host-a": claims.ManagementPort}[to]; ok {
		if next, err = attack.MAC(target.place, link); err != nil {
			return outcome{}, err
		}
	}
	src, forgedMAC := stranger(f), mac
	if as != "" {
		src = w.endpoints[as].address(f)
	}
	if withMAC {
		if forgedMAC, err = attack.MAC(w.endpoints[as].place, podLink); err != nil {
			return outcome{}, err
		}
	}
	dst := netip.AddrPortFrom(target.address(f), ear.Port)
	datagram := func(a netip.Addr, m cluster.MAC, mark []byte) []byte {
		return attack.Frame(m, next, attack.UDP(netip.AddrPortFrom(a, 40000), dst, mark))
	}
	return w.beside(ctx, from.place, ear, func(mark []byte) []byte { return datagram(from.address(f), mac, mark) },
		func(mark []byte) []byte { return datagram(src, forgedMAC, mark) })
}

// offer sends DHCP replies. Requests of a DHCP client are legitimate, and so is the reply to a
// client that sent a request to the pod's own address.
func (w *world) offer(ctx context.Context, f family, to, link string, everybody bool) (outcome, error) {
	from, target := w.endpoints[attacker], w.endpoints[to]
	ear, err := attack.Listen(target.place, link) // as a DHCP client without an address receives
	if err != nil {
		return outcome{}, err
	}
	defer ear.Close()
	mac, err := attack.MAC(from.place, podLink)
	if err != nil {
		return outcome{}, err
	}
	next, err := attack.MAC(target.place, link)
	if err != nil {
		return outcome{}, err
	}
	client, server := uint16(68), uint16(67)
	src, dst := from.address(f), target.address(f)
	if f.name == "6" {
		client, server = 546, 547
		src, dst = attack.LinkLocal(mac), attack.LinkLocal(next)
	}
	if everybody {
		next, dst = cluster.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, netip.MustParseAddr("255.255.255.255")
		if f.name == "6" {
			next, dst = cluster.MAC{0x33, 0x33, 0, 0, 0, 1}, netip.MustParseAddr("ff02::1")
		}
	}
	datagram := func(from, to uint16) func(mark []byte) []byte {
		return func(mark []byte) []byte {
			return attack.Frame(mac, next, attack.UDP(netip.AddrPortFrom(src, from), netip.AddrPortFrom(dst, to), mark))
		}
	}
	honest, forged := datagram(client, server), datagram(server, client)
	out, err := w.beside(ctx, from.place, ear, honest, forged)
	if err != nil || out.taken || everybody || to != neighbour {
		return out, err
	}
	if w.openflow { // also if conntrack treats them as invalid
		invalid := func(mark []byte) []byte { return attack.Corrupt(forged(append(bytes.Clone(mark), 0))) }
		if out, err = w.beside(ctx, from.place, ear, honest, invalid); err != nil || out.taken {
			return out, err
		}
	}
	const other = 40067 // a request to the port above would allow its reply for half a minute
	request := attack.Frame(next, mac, attack.UDP(netip.AddrPortFrom(dst, client), netip.AddrPortFrom(src, other),
		newMark("request")))
	mark := newMark("asked")
	return out, w.until(ctx, "after a request", func() error {
		if err := attack.Send(target.place, link, request); err != nil {
			return err
		}
		if err := attack.Send(from.place, podLink, datagram(other, client)(mark)); err != nil {
			return err
		}
		if ear.Hear(ctx, w.patience(), contains(mark)) == nil {
			return errors.New("the answer did not arrive")
		}
		return nil
	})
}

// beside sends a legitimate frame, which must arrive, then forged ones, and another legitimate one.
func (w *world) beside(ctx context.Context, from lab.Place, ear *attack.Ear, honest,
	forged func(mark []byte) []byte) (outcome, error) {
	good, bad := newMark("honest"), newMark("forged")
	if err := w.arrives(ctx, from, ear, honest(good), good); err != nil {
		return outcome{}, fmt.Errorf("the honest packet before: %w", err)
	}
	for range 3 { // the first may wait for a flow of Open vSwitch
		if err := attack.Send(from, podLink, forged(bad)); err != nil {
			return outcome{}, err
		}
	}
	if got := ear.Hear(ctx, w.patience(), contains(bad)); got != nil {
		_, sender, _ := bytes.Cut(got, bad)
		return takenWith("it arrived%s", sender), nil
	}
	good = newMark("honest")
	if err := w.arrives(ctx, from, ear, honest(good), good); err != nil {
		return outcome{}, fmt.Errorf("the honest packet after: %w", err)
	}
	return refusedWith("nothing arrived, honest packets did"), nil
}

// arrives sends a frame until the ear receives it.
func (w *world) arrives(ctx context.Context, from lab.Place, ear *attack.Ear, frame, mark []byte) error {
	for end := time.Now().Add(w.longer(5 * time.Second)); time.Now().Before(end); {
		if err := attack.Send(from, podLink, frame); err != nil {
			return err
		}
		if ear.Hear(ctx, w.patience(), contains(mark)) != nil {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return fmt.Errorf("it did not arrive from %s", from.Name())
}

// pretend sends a frame to every port of the switch. It checks whether a pod or the host receives
// it. An announcement of the sender's own address is legitimate.
func (w *world) pretend(ctx context.Context, frame func(*world, cluster.MAC) []byte) (outcome, error) {
	from := w.endpoints[attacker]
	mac, err := attack.MAC(from.place, podLink)
	if err != nil {
		return outcome{}, err
	}
	forged, own := frame(w, mac), attack.NeighborAdvertisement(mac, from.address(families()[1]))
	var got []string
	for _, at := range []struct{ place, link string }{{neighbour, podLink}, {"host-a", claims.ManagementPort}} {
		ear, err := attack.Listen(w.endpoints[at.place].place, at.link)
		if err != nil {
			return outcome{}, err
		}
		defer ear.Close()
		if err := w.hearsFrame(ctx, from.place, ear, own); err != nil {
			return outcome{}, fmt.Errorf("%s does not hear an honest announcement: %w", at.place, err)
		}
		for range 3 {
			if err := attack.Send(from.place, podLink, forged); err != nil {
				return outcome{}, err
			}
		}
		if ear.Hear(ctx, w.patience(), func(b []byte) bool { return bytes.Equal(b, forged) }) != nil {
			got = append(got, at.place)
			continue
		}
		if err := w.hearsFrame(ctx, from.place, ear, own); err != nil {
			return outcome{}, fmt.Errorf("%s does not hear an honest announcement afterwards: %w", at.place, err)
		}
	}
	if len(got) > 0 {
		return takenWith("%v got it", got), nil
	}
	return refusedWith("neither pods nor the host got it, honest announcements did"), nil
}

// advertise sends router advertisements and checks whether a link accepts them. OVN forwards them,
// because its ACLs pass all neighbour discovery. The same link must accept them once accept_ra is
// set. The bridge of service-engine = openflow does not forward them.
func (w *world) advertise(ctx context.Context, to, link string) (out outcome, err error) {
	if w.openflow {
		return w.pretend(ctx, func(_ *world, mac cluster.MAC) []byte {
			return attack.RouterAdvertisement(mac, netip.MustParsePrefix("2001:db8:bad::/64"), attack.RouterLifetime)
		})
	}
	from, at := w.endpoints[attacker].place, w.endpoints[to].place
	mac, err := attack.MAC(from, podLink)
	if err != nil {
		return outcome{}, err
	}
	frame := attack.RouterAdvertisement(mac, netip.MustParsePrefix("2001:db8:bad::/64"), attack.RouterLifetime)
	ear, err := attack.Listen(at, link)
	if err != nil {
		return outcome{}, err
	}
	defer ear.Close()
	for range 2 { // after the second, the kernel has processed the first
		if err := w.hearsFrame(ctx, from, ear, frame); err != nil {
			return outcome{}, err
		}
	}
	believes := func() (bool, error) { // the kernel added an address or a route
		var has bool
		err := lab.Do(at, func() error {
			routes, err := os.ReadFile("/proc/thread-self/net/ipv6_route")
			has = bytes.Contains(routes, []byte("20010db80bad"))
			return err
		})
		return has, err
	}
	if has, err := believes(); err != nil || has {
		return takenWith("%s has taken the prefix", to), err
	}
	sysctl := func(value string) error {
		return lab.Do(at, func() error {
			return os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/accept_ra", []byte(value), 0o644)
		})
	}
	defer func() {
		err = errors.Join(err, sysctl("0"), lab.Do(at, func() error { return forgetPrefix(link) }))
	}()
	if err := sysctl("2"); err != nil { // accept also with forwarding enabled
		return outcome{}, err
	}
	err = w.until(ctx, "with accept_ra=2", func() error {
		if err := attack.Send(from, podLink, frame); err != nil {
			return err
		}
		if has, err := believes(); err != nil || !has {
			return errors.Join(err, errors.New("it does not take the prefix either"))
		}
		return nil
	})
	return refusedWith("%s took no prefix; with accept_ra=2 it does", to), err
}

// forgetPrefix removes the addresses and routes that a link learned from the advertisement. The
// kernel would keep the route of the prefix (protocol kernel) until it expires.
func forgetPrefix(link string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	addresses, err := netlink.AddrList(l, netlink.FAMILY_V6)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		if strings.HasPrefix(a.IP.String(), "2001:db8:bad:") {
			err = errors.Join(err, netlink.AddrDel(l, &a))
		}
	}
	routes, failed := netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{LinkIndex: l.Attrs().Index},
		netlink.RT_FILTER_OIF)
	for _, r := range routes {
		if r.Protocol == unix.RTPROT_RA || r.Dst != nil && strings.HasPrefix(r.Dst.IP.String(), "2001:db8:bad:") {
			failed = errors.Join(failed, netlink.RouteDel(&r))
		}
	}
	return errors.Join(err, failed)
}

func (w *world) hearsFrame(ctx context.Context, from lab.Place, ear *attack.Ear, frame []byte) error {
	for end := time.Now().Add(w.longer(5 * time.Second)); time.Now().Before(end); {
		if err := attack.Send(from, podLink, frame); err != nil {
			return err
		}
		if ear.Hear(ctx, w.patience(), func(b []byte) bool { return bytes.Equal(b, frame) }) != nil {
			return nil
		}
	}
	return fmt.Errorf("a frame of %s did not arrive", from.Name())
}

// newMark returns a unique payload.
func newMark(word string) []byte { return []byte(word + " " + rand.Text()) }

func contains(mark []byte) func([]byte) bool {
	return func(b []byte) bool { return bytes.Contains(b, mark) }
}
