package demo

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/attack"
)

// collusionTrials returns trials of two pods that may not talk, and both try.
func collusionTrials() []Trial {
	var list []Trial
	// Each pair of pods is tried without policies, too: what is sent must arrive then.
	add := func(name string, try func(ctx context.Context, w *world, arrives bool) error) {
		list = append(list, Trial{Name: name, Not: []Exception{noPolicies},
			try: func(ctx context.Context, w *world) (string, error) {
				if err := try(ctx, w, true); err != nil {
					return "", err
				}
				return "", w.isolate(ctx, "policyTypes: [Ingress, Egress]",
					func() error { return try(ctx, w, false) })
			}})
	}
	for _, f := range families() {
		for _, other := range []string{attacker, "pod-b1"} {
			add(way{isolated, other, "direct"}.name("policy collusion", "ipv"+f.name),
				func(ctx context.Context, w *world, arrives bool) error { return w.collude(ctx, other, f, arrives) })
		}
		for _, x := range []struct {
			way
			endpoint string
		}{{byService, isolated}, {byFarService, isolated}, {toFarService, "pod-c1"}} {
			add(x.name("policy collusion", "ipv"+f.name),
				func(ctx context.Context, w *world, arrives bool) error {
					return w.colludeByService(ctx, x.way, x.endpoint, f, arrives)
				})
		}
	}
	return list
}

// isolate runs a function while a NetworkPolicy with the spec isolates the pod.
func (w *world) isolate(ctx context.Context, spec string, run func() error) error {
	remove, err := w.putAll(ctx, podsNamespace, netpol("trial", isolatedTarget, spec))
	if err != nil {
		return err
	}
	drops := []way{clientHere}
	if strings.Contains(spec, "Egress") {
		drops = append(drops, toClient)
	}
	err = w.until(ctx, "the policies are in force", func() error {
		return w.probeAll(ctx, probes("", others...), probes("", drops...), w.patience())
	})
	if err == nil {
		err = run()
	}
	return errors.Join(err, remove())
}

// toward returns the MAC to which a pod sends packets for an address.
func (w *world) toward(pod string, to netip.Addr) cluster.MAC {
	own := w.endpoints[pod].address(families()[0])
	for _, n := range w.nodes {
		for _, p := range n.podCIDRs {
			if !p.Contains(own) {
				continue
			}
			for _, other := range w.lab.Node(w.nodeOfPod(pod)).Pods() {
				if slices.Contains(other.IPs(), to) {
					return w.macOf(other.Name())
				}
			}
			return cluster.MACFor(p.Masked().Addr().Next())
		}
	}
	return cluster.MAC{}
}

// nodeOfPod returns the node of a pod of the demo: node-a for pod-a1.
func (w *world) nodeOfPod(pod string) string { return "node-" + string(pod[len("pod-")]) }

// segment is a packet of a pod, and what of it is recognized where it arrives.
type segment struct {
	from   string
	packet []byte
	ports  []byte // source and destination
}

// sends sends a packet of a pod as its program with the capability NET_RAW does.
func (w *world) sends(s segment) error {
	to := netip.Addr{}
	if b := s.packet; b[0]>>4 == 4 {
		to = netip.AddrFrom4([4]byte(b[16:20]))
	} else {
		to = netip.AddrFrom16([16]byte(b[24:40]))
	}
	frame := attack.Frame(w.macOf(s.from), w.toward(s.from, to), s.packet)
	return attack.Send(w.endpoints[s.from].place, podLink, frame)
}

// kinds are packets with which a connection may begin, or continue.
var kinds = []func(src, dst netip.AddrPort) []byte{
	func(src, dst netip.AddrPort) []byte { return attack.UDP(src, dst, []byte("collusion")) },
	attack.SYN,
	func(src, dst netip.AddrPort) []byte { return attack.TCP(src, dst, 2, 2, []byte("collusion")) },
}

// portsOf returns the bytes of two ports, as headers of UDP and TCP have them.
func portsOf(src, dst uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, src), dst)
}

// portOfPod returns a port that no server or earlier connection uses.
func portOfPod() uint16 { return 20000 + uint16(rand.N(10000)) }

// collude sends packets with swapped ports from two pods in several orders: none may arrive at
// the other one.
func (w *world) collude(ctx context.Context, other string, f family, arrives bool) error {
	var tries []func() error
	for _, order := range []string{"ab", "ba", "abab", "baba", "aabb", "bbaa"} {
		for _, script := range [][]int{{0}, {1}, {2}, {1, 2}} { // indices of kinds: UDP, TCP, and simultaneous open
			a := netip.AddrPortFrom(w.endpoints[isolated].address(f), portOfPod())
			b := netip.AddrPortFrom(w.endpoints[other].address(f), portOfPod())
			var all []segment
			for _, kind := range script {
				for _, who := range order {
					s := segment{isolated, kinds[kind](a, b), portsOf(a.Port(), b.Port())}
					if who == 'b' {
						s = segment{other, kinds[kind](b, a), portsOf(b.Port(), a.Port())}
					}
					all = append(all, s)
				}
			}
			if arrives {
				return w.firstArrives(ctx, isolated, other, all)
			}
			tries = append(tries, func() error {
				if err := w.nothingArrives(ctx, isolated, other, all); err != nil {
					return fmt.Errorf("order %s of packets %v: %w", order, script, err)
				}
				return nil
			})
		}
	}
	return lab.Together(tries...)
}

// nothingArrives sends packets one after the other between two pods. None may arrive.
func (w *world) nothingArrives(ctx context.Context, one, other string, all []segment) error {
	var ears []*attack.Ear
	for _, at := range []string{one, other} {
		ear, err := attack.Listen(w.endpoints[at].place, podLink)
		if err != nil {
			return err
		}
		defer ear.Close()
		ears = append(ears, ear)
	}
	ofAll := func(b []byte) bool {
		return slices.ContainsFunc(all, func(s segment) bool { return bytes.Contains(b, s.ports) })
	}
	for i, s := range all {
		if err := w.sends(s); err != nil {
			return err
		}
		limit := 20 * time.Millisecond // the next one finds what this one has left
		if i == len(all)-1 {
			limit = 100 * time.Millisecond
		}
		for j, at := range []string{one, other} {
			if ears[j].Hear(ctx, w.longer(limit), ofAll) != nil {
				return fmt.Errorf("%s got a packet", at)
			}
		}
	}
	return nil
}

// firstArrives sends packets until each pod gets one.
func (w *world) firstArrives(ctx context.Context, one, other string, all []segment) error {
	return w.until(ctx, "without policies", func() error {
		for _, to := range []string{other, one} { // an endpoint is asked first
			from := map[string]string{one: other, other: one}[to]
			ear, err := attack.Listen(w.endpoints[to].place, podLink)
			if err != nil {
				return err
			}
			defer ear.Close()
			for _, s := range all {
				if s.from == from {
					err = errors.Join(err, w.sends(s))
				}
			}
			ofOther := func(b []byte) bool {
				return slices.ContainsFunc(all,
					func(s segment) bool { return s.from == from && bytes.Contains(b, s.ports) })
			}
			if err == nil && ear.Hear(ctx, w.patience(), ofOther) == nil {
				err = fmt.Errorf("nothing of %s arrived at %s", from, to)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// colludeByService sends a request to a Service, which is denied. The endpoint then answers without
// having received it.
func (w *world) colludeByService(ctx context.Context, x way, endpoint string, f family, arrives bool) error {
	vip, err := w.wayTo(x, f)
	if err != nil {
		return err
	}
	server := netip.AddrPortFrom(w.endpoints[endpoint].address(f), podPort)
	var tries []func() error
	for _, order := range []string{"ca", "cac", "caca", "ac", "aca"} {
		for _, script := range [][]int{{0}, {1}, {1, 2}} {
			client := netip.AddrPortFrom(w.endpoints[x.from].address(f), portOfPod())
			var all []segment
			for _, kind := range script {
				for _, who := range order {
					if who == 'c' {
						all = append(all, segment{x.from, kinds[kind](client, vip), portsOf(client.Port(), podPort)})
						continue
					}
					answer := kinds[kind](server, client)
					all = append(all, segment{endpoint, answer, portsOf(server.Port(), client.Port())},
						segment{endpoint, answer, portsOf(vip.Port(), client.Port())}) // with its translation undone
				}
			}
			if arrives {
				return w.firstArrives(ctx, x.from, endpoint, all)
			}
			tries = append(tries, func() error {
				if err := w.nothingArrives(ctx, x.from, endpoint, all); err != nil {
					return fmt.Errorf("order %s of packets %v: %w", order, script, err)
				}
				return nil
			})
		}
	}
	return lab.Together(tries...)
}
