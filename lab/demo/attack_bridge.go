package demo

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/lab/attack"
)

// Names of what filters frames at br-svc and at the gateway bridge, in both directions.
const (
	byFlood = "br-svc floods to pods' ports and OVN's only; OVN has no port to the nodes' " +
		"network on the node switch"
	byTags = "br-svc and OVN's port security drop tagged frames; the gateway bridge " +
		"leaves them to the host"
	byOwnFrames = "br-svc accepts only frames for the gateway bridge's MAC"
	byOwnMACs   = "br-svc drops frames of the gateway bridge with a MAC of the node's host"
	byMasq      = "nft on the host: the masquerade addresses are for the host's own packets"
)

// outerLink is the link of clients and nodes to the nodes' network, in the lab.
const outerLink = "eth0"

// bridgeAttacks returns attacks with frames that switches would forward and Services answer.
func bridgeAttacks() []Attack {
	return []Attack{
		{Who: attacker, What: "sends multicast and broadcast to the nodes' network and to the host", By: byFlood,
			try: floodOut},
		{Who: attacker, What: "sends frames with VLAN tags to another pod", By: byTags, Group: "frames",
			try: tagToNeighbour},
		{Who: clientName, What: "sends frames with VLAN tags to a NodePort", By: byTags, Group: "frames",
			try: func(ctx context.Context, w *world) (outcome, error) {
				return w.frames(ctx, func(honest []byte) [][]byte {
					return [][]byte{attack.Tagged(honest, 77), attack.Tagged(honest, 7, 77)}
				})
			}},
		{Who: clientName, What: "sends requests to a NodePort in frames that are not for the node", By: byOwnFrames, Group: "frames",
			try: func(ctx context.Context, w *world) (outcome, error) {
				return w.frames(ctx, func(honest []byte) [][]byte {
					return [][]byte{to(honest, cluster.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}),
						to(honest, cluster.MAC{2, 0xde, 0xad, 0, 0, 1})}
				})
			}},
		{Who: clientName, What: "sends requests to a NodePort with MACs of the node's host", By: byOwnMACs, Group: "frames",
			Not: func(w *world) string {
				if w.openflow && w.shared {
					return ""
				}
				return "answers do not go to the sender's MAC here"
			},
			try: func(ctx context.Context, w *world) (outcome, error) {
				return w.frames(ctx, func(honest []byte) [][]byte {
					masquerade := cluster.MACFor(nth(families()[0].masquerade, claims.MasqHost))
					return [][]byte{from(honest, masquerade)}
				})
			}},
		{Who: clientName, What: "sends requests to NodePorts at masquerade addresses of IPv4", By: byMasq, Group: "frames",
			try: masqueradeOutside(families()[0])},
		{Who: clientName, What: "sends requests to NodePorts at masquerade addresses of IPv6", By: byMasq, Group: "frames",
			try: masqueradeOutside(families()[1])},
	}
}

// to and from return a frame with another destination or source MAC.
func to(frame []byte, mac cluster.MAC) []byte { return append(mac[:], frame[len(mac):]...) }
func from(frame []byte, mac cluster.MAC) []byte {
	return append(append(bytes.Clone(frame[:len(mac)]), mac[:]...), frame[2*len(mac):]...)
}

// floodOut sends frames that a switch floods. It checks that neither the nodes' network nor the
// host receives them. The legitimate frames are the same ones to pods.
func floodOut(ctx context.Context, w *world) (outcome, error) {
	sender, client, node := w.endpoints[attacker], w.endpoints[clientName].place, w.endpoints["host-a"].place
	mac, err := attack.MAC(sender.place, podLink)
	if err != nil {
		return outcome{}, err
	}
	clientMAC, err := attack.MAC(client, outerLink)
	if err != nil {
		return outcome{}, err
	}
	mark := newMark("flood")
	var frames [][]byte
	for _, x := range []struct {
		to  string
		mac cluster.MAC
	}{
		{"224.0.0.251", cluster.MAC{1, 0, 0x5e, 0, 0, 0xfb}},
		{"255.255.255.255", cluster.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
		{"ff02::fb", cluster.MAC{0x33, 0x33, 0, 0, 0, 0xfb}}, {"224.0.0.251", clientMAC}, {"ff05::1:3", clientMAC},
	} {
		group := netip.MustParseAddr(x.to)
		src := netip.AddrPortFrom(sender.address(families()[0]), 40000)
		if group.Is6() {
			src = netip.AddrPortFrom(sender.address(families()[1]), 40000)
		}
		frames = append(frames, attack.Frame(mac, x.mac, attack.UDP(src, netip.AddrPortFrom(group, 5353), mark)))
	}
	announcement, advertisement := attack.ARPReply(mac, sender.address(families()[0])),
		attack.NeighborAdvertisement(mac, sender.address(families()[1]))
	frames = append(frames, announcement, advertisement)
	links := map[string]string{outerLink: clientName}
	ears := map[string]*attack.Ear{}
	if ears[clientName], err = attack.Listen(client, outerLink); err != nil {
		return outcome{}, err
	}
	defer ears[clientName].Close()
	if w.openflow {
		links[claims.ServiceHost] = "the host"
		if ears["the host"], err = attack.Listen(node, claims.ServiceHost); err != nil {
			return outcome{}, err
		}
		defer ears["the host"].Close()
	}
	heard, err := attack.Listen(w.endpoints[neighbour].place, podLink)
	if err != nil {
		return outcome{}, err
	}
	defer heard.Close()
	for _, frame := range slices.Concat(frames[:3], [][]byte{announcement, advertisement}) {
		if err := w.hearsFrame(ctx, sender.place, heard, frame); err != nil {
			return outcome{}, fmt.Errorf("the neighbour: %w", err)
		}
	}
	if err := attack.Send(sender.place, podLink, frames...); err != nil {
		return outcome{}, err
	}
	for _, name := range links {
		if got := ears[name].Hear(ctx, w.patience(), func(b []byte) bool {
			return bytes.Contains(b, mark) || bytes.Equal(b, announcement) || bytes.Equal(b, advertisement)
		}); got != nil {
			return takenWith("%s got a frame for %x of type %x", name, got[:6], got[12:14]), nil
		}
	}
	return refusedWith("neither the client nor the host got one of %d frames; the neighbour did", len(frames)), nil
}

// tagToNeighbour sends tagged frames to a pod of the node. Untagged ones are legitimate.
func tagToNeighbour(ctx context.Context, w *world) (outcome, error) {
	sender, target, f := w.endpoints[attacker], w.endpoints[neighbour], families()[0]
	ear, err := attack.Listen(target.place, podLink)
	if err != nil {
		return outcome{}, err
	}
	defer ear.Close()
	plain := func(mark []byte) []byte {
		return attack.Frame(w.macOf(attacker), w.macOf(neighbour),
			attack.UDP(netip.AddrPortFrom(sender.address(f), 40001), netip.AddrPortFrom(target.address(f), 40002),
				mark))
	}
	out, err := w.beside(ctx, sender.place, ear, plain,
		func(mark []byte) []byte { return attack.Tagged(plain(mark), 77) })
	if err != nil || out.taken {
		return out, err
	}
	return w.beside(ctx, sender.place, ear, plain,
		func(mark []byte) []byte { return attack.Tagged(plain(mark), 7, 77) })
}

// outerMACs returns the MACs of the client and of a host on their network.
func (w *world) outerMACs(of string) (client, host cluster.MAC, err error) {
	client, err = attack.MAC(w.endpoints[clientName].place, outerLink)
	if err == nil {
		host, err = attack.MAC(w.endpoints[of].place, outerLink)
	}
	return client, host, err
}

// frames sends a client's requests for a NodePort of node-a in frames that are not addressed as
// those for the node. The endpoint is a pod of the node.
func (w *world) frames(ctx context.Context, forged func(honest []byte) [][]byte) (outcome, error) {
	client, f := w.endpoints[clientName], families()[0]
	nodePort, err := w.target(Case{To: "keeppod", Path: "NodePort node-a"}, f)
	if err != nil {
		return outcome{}, err
	}
	own, node, err := w.outerMACs("host-a")
	if err != nil {
		return outcome{}, err
	}
	ear, err := attack.Listen(w.endpoints[neighbour].place, podLink)
	if err != nil {
		return outcome{}, err
	}
	defer ear.Close()
	var port uint16 = 41000
	request := func(mark []byte) []byte {
		port++ // a new connection
		return attack.Frame(own, node, attack.UDP(netip.AddrPortFrom(client.address(f), port), nodePort, mark))
	}
	good := newMark("honest")
	if err := w.arrives(ctx, client.place, ear, request(good), good); err != nil {
		return outcome{}, fmt.Errorf("the honest request: %w", err)
	}
	bad := newMark("forged")
	for range 3 {
		if err := attack.Send(client.place, outerLink, forged(request(bad))...); err != nil {
			return outcome{}, err
		}
	}
	if ear.Hear(ctx, w.patience(), contains(bad)) != nil {
		return takenWith("%s got it", neighbour), nil
	}
	good = newMark("honest")
	return refusedWith("nothing arrived, honest requests did"), w.arrives(ctx, client.place, ear, request(good), good)
}

// masqueradeOutside sends requests to NodePorts of node-a at the addresses that its host translates
// Services' addresses to.
func masqueradeOutside(f family) func(context.Context, *world) (outcome, error) {
	return func(ctx context.Context, w *world) (outcome, error) {
		client := w.endpoints[clientName]
		own, node, err := w.outerMACs("host-a")
		if err != nil {
			return outcome{}, err
		}
		ear, err := attack.Listen(client.place, outerLink)
		if err != nil {
			return outcome{}, err
		}
		defer ear.Close()
		var asked []netip.AddrPort
		honest, err := w.target(Case{To: "podlocal", Path: "NodePort node-a"}, f)
		if err != nil {
			return outcome{}, err
		}
		for _, s := range w.services {
			for _, place := range []int{claims.MasqAll, claims.MasqLocal, claims.MasqServiceHost} {
				if s.nodePort != 0 {
					asked = append(asked, netip.AddrPortFrom(nth(f.masquerade, place), s.nodePort))
				}
			}
		}
		ask := func(at netip.AddrPort) error {
			packet := attack.UDP(netip.AddrPortFrom(client.address(f), 41500), at, newMark("request"))
			return attack.Send(client.place, outerLink, attack.Frame(own, node, packet))
		}
		answer := func(at ...netip.AddrPort) []byte {
			return ear.Hear(ctx, w.patience(), func(b []byte) bool {
				for _, a := range at {
					if bytes.Contains(b, append(a.Addr().AsSlice(), client.address(f).AsSlice()...)) {
						return true
					}
				}
				return false
			})
		}
		for _, at := range asked {
			if err := ask(at); err != nil {
				return outcome{}, err
			}
		}
		if got := answer(asked...); got != nil {
			return takenWith("an answer of %d bytes came", len(got)), nil
		}
		return refusedWith("none of %d NodePorts answered, the one at the node's address did", len(asked)),
			w.until(ctx, "the NodePort at the node's address", func() error {
				if err := ask(honest); err != nil {
					return err
				}
				if answer(honest) == nil {
					return fmt.Errorf("%s did not answer", honest)
				}
				return nil
			})
	}
}
