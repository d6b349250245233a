package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/attack"
	"hairpin/lab/probe"
)

// Names of what rejects tunnel packets. Open vSwitch itself has a tunnel to each node only.
const (
	byTunnelFlows = "flows of the gateway bridge and nft on the host: only node addresses may send tunnel packets"
	byTunnelPods  = "flows of the gateway bridge and nft on the host: pods cannot reach tunnels"
)

// The tunnel that attacks use: to node-a, with node-b as the claimed sender.
const (
	tunnelTo, tunnelFrom = "node-a", "node-b"
	liar                 = "pod-b2" // on node-b: its packets to node-a have node-b's address
)

// tunnelAttacks returns attacks that inject tunnel packets into the pod network.
func tunnelAttacks() []Attack {
	var list []Attack
	for _, x := range []struct{ who, by string }{{clientName, byTunnelFlows}, {attacker, byTunnelPods}} {
		list = append(list, Attack{Who: x.who, What: "sends a tunnel packet to node-a", By: x.by, Group: "tunnel",
			try: func(ctx context.Context, w *world) (outcome, error) { return w.tunnel(ctx, x.who, w.tunnelEnd()) }})
	}
	return append(list, Attack{Who: liar, What: "sends a tunnel packet to node-a, also in fragments",
		By: byTunnelPods + "; " + byWholeTunnels, Group: "tunnel",
		try: func(ctx context.Context, w *world) (outcome, error) {
			return w.tunnelAlsoInParts(ctx, liar, w.tunnelEnd())
		}}, Attack{Who: liar,
		What: "sends a tunnel packet to a Service with the tunnel of node-a as its endpoint, also in fragments",
		By:   byTunnelPods + "; " + byWholeTunnels, try: tunnelService(liar)},
		Attack{Who: clientName,
			What: "sends a tunnel packet to a NodePort of node-b with the tunnel of node-a as its endpoint, " +
				"also in fragments",
			By: byTunnelPods + "; " + byWholeTunnels, try: tunnelService(clientName)})
}

// tunnel sends a packet to a tunnel endpoint. A pod must not receive its payload. The same packet
// from another node's host arrives.
func (w *world) tunnel(ctx context.Context, who string, to netip.AddrPort) (outcome, error) {
	from, victim := w.endpoints[who], w.endpoints[neighbour]
	ear, err := attack.ListenUDP(victim.place, 0)
	if err != nil {
		return outcome{}, err
	}
	defer ear.Close()
	packet := func(mark []byte) []byte { return w.inTunnel(ear.Port, mark) }
	honest := w.endpoints[hostPlace(tunnelFrom)].place
	node := func() error { return w.tunnelled(ctx, honest, w.tunnelEnd(), ear, packet) }
	if err := node(); err != nil {
		return outcome{}, err
	}
	bad := newMark("forged")
	for range 3 {
		if err := sendUDP(from.place, to, packet(bad)); err != nil {
			return outcome{}, err
		}
	}
	if ear.Hear(ctx, w.patience(), contains(bad)) != nil {
		return takenWith("%s got what was in it", neighbour), nil
	}
	return refusedWith("nothing arrived; that of a node did"), node()
}

// tunnelled sends from a node's host until the pod receives it.
func (w *world) tunnelled(ctx context.Context, from lab.Place, to netip.AddrPort, ear *attack.Ear,
	packet func([]byte) []byte) error {
	mark := newMark("honest")
	return w.until(ctx, "a tunnel packet of "+from.Name(), func() error {
		if err := sendUDP(from, to, packet(mark)); err != nil {
			return err
		}
		if ear.Hear(ctx, w.patience(), contains(mark)) == nil {
			return errors.New("it did not arrive")
		}
		return nil
	})
}

// inTunnel returns a datagram of a pod on node-b to the victim, as node-b sends it to node-a.
func (w *world) inTunnel(port uint16, mark []byte) []byte {
	f := families()[0]
	from, to := w.nodes[tunnelFrom].id, w.nodes[tunnelTo].id
	transit := func(id int) cluster.MAC {
		return cluster.MACFor(netip.AddrFrom4([4]byte{100, 88, byte((id + 1) >> 8), byte(id + 1)}))
	}
	inner := attack.UDP(netip.AddrPortFrom(w.endpoints[liar].address(f), 40000),
		netip.AddrPortFrom(w.endpoints[neighbour].address(f), port), mark)
	return attack.Geneve(claims.TransitTunnelKey, uint16(from), uint16(to),
		attack.Frame(transit(from), transit(to), inner))
}

// sendUDP sends one datagram through a socket.
func sendUDP(from lab.Place, to netip.AddrPort, payload []byte) error {
	return lab.Do(from, func() error {
		conn, err := net.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(payload)
		return err
	})
}

// tunnelService creates a Service with the tunnel of node-a as endpoint and sends a packet to it.
// Its other port, which node-a's host serves, must work.
func tunnelService(who string) func(context.Context, *world) (outcome, error) {
	return func(ctx context.Context, w *world) (out outcome, err error) {
		const clusterIP, nodePort = "10.96.66.1", 30661
		end := w.endpoints["host-a"].address(families()[0])
		remove, err := w.putAll(ctx, fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: attack-tunnel, namespace: default, labels: {kubernetes.io/service-name: attack-tunnel}}
addressType: IPv4
ports: [{name: tunnel, port: %d, protocol: UDP}, {name: honest, port: %d, protocol: UDP}]
endpoints: [{addresses: [%s], nodeName: node-a, conditions: {ready: true}}]
`, attack.GenevePort, hostPort, end), fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: attack-tunnel, namespace: default}
spec:
  type: NodePort
  clusterIP: %[1]s
  clusterIPs: [%[1]s]
  ipFamilies: [IPv4]
  ports: [{name: tunnel, port: 1, nodePort: %[2]d, protocol: UDP}, {name: honest, port: 2, nodePort: %[3]d, protocol: UDP}]
`, clusterIP, nodePort, nodePort+1))
		if err != nil {
			return outcome{}, err
		}
		defer func() { err = errors.Join(err, remove()) }()
		at := func(port uint16) netip.AddrPort {
			if who == clientName {
				return netip.AddrPortFrom(w.endpoints[hostPlace(tunnelFrom)].address(families()[0]), nodePort-1+port)
			}
			return netip.AddrPortFrom(netip.MustParseAddr(clusterIP), port)
		}
		err = w.until(ctx, "the Service's other port", func() error {
			a := lab.Get(ctx, w.endpoints[who].place,
				probe.Request{Protocol: "udp", To: at(2), Timeout: w.longer(time.Second)})
			if a.Error != "" {
				return errors.New(a.Error)
			}
			return nil
		})
		if err != nil {
			return outcome{}, err
		}
		return w.tunnelAlsoInParts(ctx, who, at(1))
	}
}

// tunnelEnd returns the address and the port of node-a's tunnel.
func (w *world) tunnelEnd() netip.AddrPort {
	return netip.AddrPortFrom(w.endpoints[hostPlace(tunnelTo)].address(families()[0]), attack.GenevePort)
}

// tunnelAlsoInParts sends tunnel packets whole, and then in fragments.
func (w *world) tunnelAlsoInParts(ctx context.Context, who string, to netip.AddrPort) (outcome, error) {
	if out, err := w.tunnel(ctx, who, to); err != nil || out.taken {
		return out, err
	}
	return w.tunnelInParts(ctx, who, to)
}
