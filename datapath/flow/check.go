package flow

import (
	"fmt"
	"net/netip"
	"strings"

	"hairpin/cluster"
)

// Check tells why Open vSwitch would refuse a flow, or keep it otherwise than it is written (an unmasked address, a
// port without a protocol), so that it would look changed at every reading. nil is a flow that is fine.
func (f *Flow) Check() error {
	if err := f.Match.check(); err != nil {
		return fmt.Errorf("%s: %w", f.Key, err)
	}
	if len(f.Actions) == 0 {
		return fmt.Errorf("%s: no actions; say drop", f.Key)
	}
	for _, a := range f.Actions {
		if err := f.checkAction(a); err != nil {
			return fmt.Errorf("%s: %w", f.Key, err)
		}
	}
	return nil
}

// maxVLAN is the last number of a VLAN.
const maxVLAN = 4095

func (m Match) check() error {
	if err := m.prerequisites(); err != nil {
		return err
	}
	for _, p := range []netip.Prefix{m.Src, m.Dst} {
		switch {
		case !p.IsValid():
		case p.Bits() == 0:
			return fmt.Errorf("%s matches everything", p)
		case p != p.Masked():
			return fmt.Errorf("%s has bits outside of its mask", p)
		case cluster.FamilyOf(p.Addr()) != m.Protocol.Family():
			return fmt.Errorf("%s does not go with %q", p, m.Protocol)
		}
	}
	switch {
	case m.CTState.Set&m.CTState.Clear != 0:
		return fmt.Errorf("ct_state %s asks for a bit and against it", m.CTState)
	case m.Fragment != "" && !isFragment(m.Fragment):
		return fmt.Errorf("%q is not a kind of fragment", m.Fragment)
	case m.Tagged && m.VLAN != 0:
		return fmt.Errorf("VLAN %d is tagged anyway", m.VLAN)
	case m.VLAN > maxVLAN:
		return fmt.Errorf("VLAN %d is too large", m.VLAN)
	case m.ICMPType > 256:
		return fmt.Errorf("ICMP type %d is too large", m.ICMPType-1)
	case m.ICMPCode > 256:
		return fmt.Errorf("ICMP code %d is too large", m.ICMPCode-1)
	}
	return checkPort(m.InPort)
}

// prerequisites tells which fields lack the protocol that has them.
func (m Match) prerequisites() error {
	w := m.Protocol.words()
	ip := w.family != 0 && m.Protocol != ARP
	_, linked := m.linkField()
	switch {
	case (m.SrcPort != 0 || m.DstPort != 0) && !w.ports:
		return wordError("tp_src, tp_dst", "needs tcp, udp or sctp")
	case (m.CTProtocol != 0) != (m.CTDstPort != 0), m.CTDstPort != 0 && !(ip && m.CTState.Set&CTTrk != 0):
		return wordError("ct_nw_proto, ct_tp_dst", "belong together, and need ip or ipv6 and ct_state=+trk")
	case (m.ICMPType != 0 || m.ICMPCode != 0) && !w.icmp:
		return wordError("icmp_type, icmp_code", "needs icmp or icmp6")
	case m.Target.IsValid() && (m.Protocol != ICMP6 || m.ICMPType != 135+1 && m.ICMPType != 136+1 || !m.Target.Is6()):
		return wordError("nd_target", "needs icmp6 and icmp_type 135 or 136")
	case m.NoLinkAddr && (m.Protocol == ARP || m.LinkAddr != cluster.MAC{}):
		return wordError("nd_sll, nd_tll", "are absent only from neighbour discovery, and without a MAC")
	case (m.NoLinkAddr || m.LinkAddr != cluster.MAC{}) && !linked:
		return wordError("arp_sha, nd_sll, nd_tll", "needs arp, or icmp6 and icmp_type 135 or 136")
	case m.Tunnel != (Tunnel{}) && !m.Tunnel.whole():
		return wordError("tun_id, tun_src, tun_metadata0", "belong together")
	case (m.Fragment != "" || m.TTL != 0) && !ip:
		return wordError("nw_frag, nw_ttl", "needs ip or ipv6")
	case m.SYN && m.Protocol != TCP && m.Protocol != TCP6:
		return wordError("tcp_flags", "needs tcp or tcp6")
	}
	return nil
}

// whole reports whether the tunnel has all that OVN's packets carry.
func (t Tunnel) whole() bool {
	return t.Key != 0 && t.Key < 1<<24 && t.Ports != 0 && t.Peer.IsValid() && t.Peer.Zone() == "" && !t.Peer.Is4In6() && !t.Peer.IsUnspecified()
}

func (f *Flow) checkAction(a Action) error {
	switch a := a.(type) {
	case Output:
		if a.Port == "" {
			return fmt.Errorf("an output without a port")
		}
		return checkPort(a.Port)
	case Drop:
		if len(f.Actions) > 1 {
			return fmt.Errorf("drop stands alone")
		}
	case SetSrc:
		if p := f.Match.Protocol; p == ARP || !a.Addr.IsValid() || cluster.FamilyOf(a.Addr) != p.Family() {
			return fmt.Errorf("%s packets get the source %s", p, a.Addr)
		}
	case SetTTL:
		if p := f.Match.Protocol; a.TTL == 0 || p == ARP || p.Family() == 0 {
			return fmt.Errorf("%s packets get the time to live %d", p, a.TTL)
		}
	case CT:
		return a.check(f.Match.Protocol)
	case PushVLAN:
		if a.ID == 0 || a.ID > maxVLAN {
			return fmt.Errorf("there is no VLAN %d", a.ID)
		}
	case ToGroup:
		if a.ID > maxGroup {
			return fmt.Errorf("the id of group %d is reserved", a.ID)
		}
	case SetGroup:
		if a.ID == 0 || a.ID > maxGroup {
			return fmt.Errorf("there is no group %d to look for", a.ID)
		}
	case Learn:
		if p := f.Match.Protocol; a.Timeout == 0 || a.Limit == 0 || a.Ways >= 32 || p == ARP || a.Family == 0 || a.Family != p.Family() {
			return fmt.Errorf("%s packets learn %+v", p, a)
		}
	case SetTunnel:
		if !a.whole() {
			return fmt.Errorf("a tunnel lacks its key, its ports or its other end: %+v", a)
		}
	case InPort, Normal, SetEthDst, SetEthSrc, MoveEthDstToSrc, SetEthDstByCT, MarkLonger, SetPktMark, Resubmit, PopVLAN:
	default:
		return fmt.Errorf("%T is an action without a check", a)
	}
	return nil
}

func (c CT) check(p Protocol) error {
	n := c.NAT
	translates := n.Kind == NATSrc || n.Kind == NATDst
	switch {
	case p.Family() == 0 || p == ARP:
		return fmt.Errorf("ct needs a match on ip or ipv6")
	case c.Mark != 0 && !c.Commit:
		return fmt.Errorf("ct sets a mark without commit")
	case c.EthSrc && c.Mark == 0:
		return fmt.Errorf("ct notes a MAC without a mark that says so")
	case translates && !c.Commit:
		return fmt.Errorf("ct translates without commit")
	case n == NAT{Kind: NATSrc}:
	case translates && (!n.Addr.IsValid() || cluster.FamilyOf(n.Addr) != p.Family()):
		return fmt.Errorf("ct translates %s packets to %s", p, n.Addr)
	case !translates && (n.Addr.IsValid() || n.PortMin != 0):
		return fmt.Errorf("ct has an address or a port without src or dst")
	case n.PortMax < n.PortMin || n.PortMin == 0 && n.PortMax != 0:
		return fmt.Errorf("ct has the port range %d-%d", n.PortMin, n.PortMax)
	}
	return nil
}

// checkPort refuses the words that OpenFlow keeps for itself.
func checkPort(name string) error {
	switch strings.ToLower(name) {
	case "in_port", "table", "normal", "flood", "all", "controller", "any", "none", "unset":
		return fmt.Errorf("%q is not a name that a port can have", name)
	case "local":
		if name != Local {
			return fmt.Errorf("%q is written %q", name, Local)
		}
	}
	return nil
}
