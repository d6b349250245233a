package demo

import (
	"context"
	"errors"
	"net/netip"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/attack"
)

// Names of what sees the port of a packet in fragments.
const (
	byFragments    = "flows of br-svc, by the port that conntrack knows of a fragment"
	byWholeTunnels = "nft on the host, after reassembly; the gateway bridge drops tunnel packets " +
		"that came in fragments"
	firstFragment   = 24 // bytes of UDP, in an attack
	longerThanALink = 1500
	// trackedFragment is the same for conntrack of the userspace datapath. It treats fragments of
	// less than 1 200 (IPv6: 1 280) bytes as invalid, except the last.
	trackedFragment = 1304
)

// noFragments returns why DHCP replies in fragments are not tried. No match of OVN's names the port
// of a connection, and OVN sends no multicast or broadcast through conntrack, which would
// reassemble it. Conntrack of the userspace datapath treats fragments as invalid before Open
// vSwitch 3.7.
func noFragments(w *world) string {
	switch {
	case !w.openflow:
		return "OVN's ACLs do not see ports of fragments (docs/operations/security.md)"
	case w.userspace && w.before("3.7"):
		return "conntrack of Open vSwitch before 3.7 does not know ports of fragments (docs/operations/security.md)"
	}
	return ""
}

// offerInParts sends DHCP replies in fragments. A DHCP client's fragmented requests must pass.
func (w *world) offerInParts(ctx context.Context, f family, everybody bool) (outcome, error) {
	sender, target := w.endpoints[attacker], w.endpoints[neighbour]
	ear, err := attack.Listen(target.place, podLink)
	if err != nil {
		return outcome{}, err
	}
	defer ear.Close()
	mac, next := w.macOf(attacker), w.macOf(neighbour)
	client, server := uint16(68), uint16(67)
	dst := target.address(f)
	if f.name == "6" {
		client, server = 546, 547
	}
	if everybody {
		next, dst = cluster.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, netip.MustParseAddr("255.255.255.255")
		if f.name == "6" {
			next, dst = cluster.MAC{0x33, 0x33, 0, 0, 0, 1}, netip.MustParseAddr("ff02::1")
		}
	}
	first := firstFragment
	if w.userspace {
		first = trackedFragment
	}
	parts := func(from, to uint16) func(mark []byte) [][]byte {
		return func(mark []byte) [][]byte {
			payload := append(make([]byte, first), mark...)
			packet := attack.UDP(netip.AddrPortFrom(sender.address(f), from), netip.AddrPortFrom(dst, to), payload)
			var frames [][]byte
			for _, part := range attack.Fragments(packet, first) {
				frames = append(frames, attack.Frame(mac, next, part))
			}
			return frames
		}
	}
	honest := func() error {
		mark := newMark("honest")
		return w.until(ctx, "a request in fragments",
			func() error { return w.hearsPart(ctx, sender.place, ear, parts(client, server)(mark), mark) })
	}
	if err := honest(); err != nil {
		return outcome{}, err
	}
	bad := newMark("forged")
	for range 3 {
		if err := attack.Send(sender.place, podLink, parts(server, client)(bad)...); err != nil {
			return outcome{}, err
		}
	}
	if ear.Hear(ctx, w.patience(), contains(bad)) != nil {
		return takenWith("%s got the fragment with the answer", neighbour), nil
	}
	return refusedWith("no fragment arrived, those of requests did"), honest()
}

// hearsPart sends fragments once, and waits for the one with the mark.
func (w *world) hearsPart(ctx context.Context, from lab.Place, ear *attack.Ear, frames [][]byte, mark []byte) error {
	if err := attack.Send(from, podLink, frames...); err != nil {
		return err
	}
	if ear.Hear(ctx, w.patience(), contains(mark)) == nil {
		return errors.New("it did not arrive")
	}
	return nil
}

// tunnelInParts sends tunnel packets that exceed the MTU to the tunnel endpoint of node-a. It
// checks that fragments do not reach that node's host. No fragment of a tunnel packet is
// legitimate.
func (w *world) tunnelInParts(ctx context.Context, who string, end netip.AddrPort) (outcome, error) {
	sender, node, f := w.endpoints[who], w.endpoints[hostPlace(tunnelTo)].place, families()[0]
	link := lab.GatewayBridge // behind its flows
	if w.detached {
		link = outerLink
	}
	ear, err := attack.Listen(node, link)
	if err != nil {
		return outcome{}, err
	}
	defer ear.Close()
	own, err := attack.MAC(sender.place, outerLink)
	if err != nil {
		return outcome{}, err
	}
	next := w.gatewayMAC()
	if who == clientName {
		if next, err = attack.MAC(w.endpoints[hostPlace(tunnelFrom)].place, outerLink); err != nil {
			return outcome{}, err
		}
	}
	mark := newMark("long")
	packet := attack.UDP(netip.AddrPortFrom(sender.address(f), 42000), end,
		w.inTunnel(9, append(make([]byte, longerThanALink), mark...)))
	var frames [][]byte
	for _, part := range attack.Fragments(packet, trackedFragment) {
		frames = append(frames, attack.Frame(own, next, part))
	}
	for range 3 {
		if err := attack.Send(sender.place, outerLink, frames...); err != nil {
			return outcome{}, err
		}
	}
	if got := ear.Hear(ctx, w.patience(), contains(mark)); got != nil {
		return takenWith("the host of %s got a fragment for its tunnel", tunnelTo), nil
	}
	return refusedWith("no fragment reached the host of %s", tunnelTo), nil
}
