package demo

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"hairpin/lab"
	"hairpin/lab/attack"
)

// packetTrials returns trials of packets without ports.
func packetTrials() []Trial {
	var list []Trial
	const web = "policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]"
	for _, f := range families() {
		for _, from := range []string{attacker, "pod-b1"} {
			add := func(name, spec string, arrives bool, frames framesOf, not ...Exception) {
				list = append(list, Trial{Name: way{from, isolated, "direct"}.name("policy "+name, "ipv"+f.name),
					Not: append(not, noPolicies),
					try: func(ctx context.Context, w *world) (string, error) {
						return "", w.rawPackets(ctx, spec, arrives, w.endpoints[from].place, podLink,
							func(mark []byte, port uint16) [][]byte { return frames(w, from, f, mark, port) })
					}})
			}
			add("echo, a rule without ports", web+"}]", true, echoFrames)
			add("echo, a rule with ports", web+", ports: [{port: 8080}, {port: 8080, protocol: UDP}]}]", false,
				echoFrames)
			add("fragments, permitted", web+"}]", true, partFrames)
			add("fragments, permitted by port", web+", ports: [{port: 1024, endPort: 65535, protocol: UDP}]}]", true,
				partFrames, Exception{onUserspace, unknownPorts})
			add("fragments, denied", "policyTypes: [Ingress]", false, partFrames)
			if from == attacker {
				add("forged ICMP error", "policyTypes: [Ingress]", false, errorFrames)
			}
		}
		for _, source := range []string{management + "node-a", join + "node-a", "host-a", attacker} {
			for _, to := range []way{clientHere, clientLocal} {
				list = append(list, Trial{Name: to.name("policy spoofed source "+source+",", "ipv"+f.name),
					Not: []Exception{noPolicies},
					try: func(ctx context.Context, w *world) (string, error) {
						return "", w.spoofed(ctx, web+"}]", source, to, f)
					}})
			}
		}
	}
	return list
}

// unknownPorts is why a rule with ports does not accept fragments.
const unknownPorts = "flows of the userspace datapath do not see the ports of fragments, and rules with ports drop them"

// framesOf returns what a pod sends to the isolated one, with the mark.
type framesOf func(w *world, from string, f family, mark []byte, port uint16) [][]byte

// spoofed sends datagrams from the external network with a source that the policies accept.
func (w *world) spoofed(ctx context.Context, spec, source string, to way, f family) error {
	at, err := w.wayTo(to, f)
	if err != nil {
		return err
	}
	src, err := w.source(source, f)
	if err != nil {
		return err
	}
	send, err := w.outsider("host-a")
	if err != nil {
		return err
	}
	ear, err := attack.Listen(w.endpoints[isolated].place, podLink)
	if err != nil {
		return err
	}
	defer ear.Close()
	arrives := func(from netip.Addr, to netip.AddrPort) (bool, error) {
		mark := newMark("spoofed")
		err := send(from, to, mark)
		return err == nil && ear.Hear(ctx, w.patience(), contains(mark)) != nil, err
	}
	honest, err := w.wayTo(clientLocal, f)
	if err != nil {
		return err
	}
	err = w.until(ctx, "the client's own address", func() error {
		ok, err := arrives(w.endpoints[clientName].address(f), honest)
		if err == nil && !ok {
			err = errors.New("it did not arrive")
		}
		return err
	})
	if err != nil {
		return err
	}
	return w.isolate(ctx, spec, func() error {
		for range 3 {
			if ok, err := arrives(src, at); err != nil || ok {
				return errors.Join(err, errors.New("it arrived"))
			}
		}
		return nil
	})
}

// outsider returns a function that sends datagrams with any source from the client to a node.
func (w *world) outsider(node string) (send func(from netip.Addr, to netip.AddrPort, payload []byte) error, err error) {
	client := w.endpoints[clientName].place
	own, router, err := w.outerMACs(node)
	if err != nil {
		return nil, err
	}
	return func(from netip.Addr, to netip.AddrPort, payload []byte) error {
		return attack.Send(client, outerLink,
			attack.Frame(own, router, attack.UDP(netip.AddrPortFrom(from, portOfPod()), to, payload)))
	}, nil
}

// rawPackets sends frames to the isolated pod, without and with a policy. Whatever the pod receives
// of them without, it must receive with one, or nothing of it.
func (w *world) rawPackets(ctx context.Context, spec string, arrives bool, from lab.Place, link string,
	frames func(mark []byte, port uint16) [][]byte) error {
	pod := w.endpoints[isolated].place
	wire, err := attack.Listen(pod, podLink)
	if err != nil {
		return err
	}
	defer wire.Close()
	program, err := attack.ListenUDP(pod, 0)
	if err != nil {
		return err
	}
	defer program.Close()
	receives := func() error {
		return w.until(ctx, "it arrives", func() error {
			mark := newMark("honest")
			all := frames(mark, program.Port)
			if err := attack.Send(from, link, all...); err != nil {
				return err
			}
			ear := wire
			if len(all) > 1 {
				ear = program // all fragments are necessary
			}
			if ear.Hear(ctx, w.patience(), contains(mark)) == nil {
				return errors.New("it did not arrive")
			}
			return nil
		})
	}
	if err := receives(); err != nil {
		return err
	}
	return w.isolate(ctx, spec, func() error {
		if arrives {
			return receives()
		}
		stays := func() error {
			mark := newMark("denied")
			for range 3 {
				if err := attack.Send(from, link, frames(mark, program.Port)...); err != nil {
					return err
				}
			}
			if wire.Hear(ctx, w.longer(time.Second), contains(mark)) != nil {
				return errors.New("it arrived")
			}
			return nil
		}
		// Open vSwitch may still have a decision about such packets from before the policy.
		if err := w.until(ctx, "it is dropped", stays); err != nil {
			return err
		}
		return stays()
	})
}

func echoFrames(w *world, from string, f family, mark []byte, _ uint16) [][]byte {
	to := w.endpoints[isolated].address(f)
	packet := attack.Echo(w.endpoints[from].address(f), to, mark)
	return [][]byte{attack.Frame(w.macOf(from), w.toward(from, to), packet)}
}

// partFrames returns a datagram in three fragments, each with the mark.
func partFrames(w *world, from string, f family, mark []byte, port uint16) (frames [][]byte) {
	const part = trackedFragment
	payload := make([]byte, 3*part-8)
	for i := range 3 {
		copy(payload[i*part:], mark)
	}
	copy(payload[len(payload)-len(mark):], mark) // the datagram's ID, see attack.Fragments
	a, to := w.endpoints[from].address(f), w.endpoints[isolated].address(f)
	packet := attack.UDP(netip.AddrPortFrom(a, portOfPod()), netip.AddrPortFrom(to, port), payload)
	for _, p := range attack.Fragments(packet, part, 2*part) {
		frames = append(frames, attack.Frame(w.macOf(from), w.toward(from, to), p))
	}
	return frames
}

// errorFrames returns an error about a datagram that the isolated pod has not sent.
func errorFrames(w *world, from string, f family, mark []byte, _ uint16) [][]byte {
	a, to := w.endpoints[from].address(f), w.endpoints[isolated].address(f)
	sent := attack.UDP(netip.AddrPortFrom(to, portOfPod()), netip.AddrPortFrom(a, portOfPod()), mark)
	return [][]byte{attack.Frame(w.macOf(from), w.toward(from, to), attack.TooBig(a, to, sent))}
}
