package demo

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/attack"
)

// Names of what sees the port of a packet in fragments.
const (
	byFragments    = "flows of br-svc, by the port that conntrack knows of a fragment"
	byWholeTunnels = "nft on the host, after reassembly; the gateway bridge drops tunnel packets " +
		"that came in fragments"
	firstFragment   = 64 // bytes of UDP, in an attack
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
	parts := func(from, to uint16, first int, mark []byte) [][]byte { // both have the mark
		payload := append(append(bytes.Clone(mark), make([]byte, first)...), mark...)
		packet := attack.UDP(netip.AddrPortFrom(sender.address(f), from), netip.AddrPortFrom(dst, to), payload)
		var frames [][]byte
		for _, part := range attack.Fragments(packet, first) {
			frames = append(frames, attack.Frame(mac, next, part))
		}
		return frames
	}
	honest := func() error {
		mark := newMark("honest")
		return w.until(ctx, "a request in fragments",
			func() error { return w.hearsPart(ctx, sender.place, ear, parts(client, server, first, mark), mark) })
	}
	if err := honest(); err != nil {
		return outcome{}, err
	}
	for _, x := range fragmentOrders() {
		bad, size := newMark("forged"), first
		if x.short {
			size = firstFragment
		}
		two := parts(server, client, size, bad)
		var frames [][]byte
		for _, i := range x.order {
			frames = append(frames, two[i])
		}
		if err := attack.Send(sender.place, podLink, frames...); err != nil {
			return outcome{}, err
		}
		if got := ear.Hear(ctx, w.patience(), contains(bad)); got != nil {
			i := slices.IndexFunc(two, func(b []byte) bool { return len(b) == len(got) })
			return takenWith("%s: %s got fragment %d of 2, which has %d bytes", x.what, neighbour, i+1, len(got)), nil
		}
	}
	return refusedWith("no fragment arrived, those of requests did"), honest()
}

// fragmentOrder is how a pod sends a datagram in two fragments.
type fragmentOrder struct {
	what  string
	order []int // of the fragments
	short bool  // the first fragment is too short for conntrack of the userspace datapath
}

// fragmentOrders returns ways to send fragments that conntrack of the userspace datapath treats as
// invalid.
func fragmentOrders() []fragmentOrder {
	return []fragmentOrder{
		{"each fragment once", []int{0, 1}, false},
		{"each fragment twice, the last one first", []int{1, 1, 0, 0}, false},
		{"a short first fragment", []int{0, 1}, true},
	}
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
	for id := range 3 { // conntrack of the userspace datapath treats duplicates as invalid
		packet := attack.UDP(netip.AddrPortFrom(sender.address(f), 42000), end,
			w.inTunnel(9, append(append(make([]byte, longerThanALink), mark...), byte(id))))
		var frames [][]byte
		for _, part := range attack.Fragments(packet, trackedFragment) {
			frames = append(frames, attack.Frame(own, next, part))
		}
		if err := attack.Send(sender.place, outerLink, frames...); err != nil {
			return outcome{}, err
		}
	}
	if got := ear.Hear(ctx, w.patience(), contains(mark)); got != nil {
		return takenWith("the host of %s got a fragment for its tunnel", tunnelTo), nil
	}
	return refusedWith("no fragment reached the host of %s", tunnelTo), nil
}
