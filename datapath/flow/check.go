package flow

import (
	"fmt"
	"math"
	"strings"

	"hairpin/cluster"
)

// Check returns why Open vSwitch would refuse a flow, or store it in another form (an unmasked
// address, a port without a protocol), so that it would differ at every reading. It returns nil for
// a valid flow.
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

// isComplete reports whether the tunnel has all fields that OVN's packets carry.
func (t Tunnel) isComplete() bool {
	return t.Key != 0 && t.Key < 1<<24 && t.Ports != 0 && t.Peer.IsValid() && t.Peer.Zone() == "" && !t.Peer.Is4In6() &&
		!t.Peer.IsUnspecified()
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
			return fmt.Errorf("drop must be the only action")
		}
	case SetSrc:
		if p := f.Match.Protocol; p == ARP || !a.Addr.IsValid() || cluster.FamilyOf(a.Addr) != p.Family() {
			return fmt.Errorf("the source %[2]s cannot be set in %[1]s packets", p, a.Addr)
		}
	case SetTTL:
		if p := f.Match.Protocol; a.TTL == 0 || p == ARP || p.Family() == 0 {
			return fmt.Errorf("the time to live %[2]d cannot be set in %[1]s packets", p, a.TTL)
		}
	case CT:
		return a.check(f.Match.Protocol)
	case ToGroup:
		if a.ID > maxGroup {
			return fmt.Errorf("the id of group %d is reserved", a.ID)
		}
	case SetProfile:
		if a.ID == 0 {
			return fmt.Errorf("there is no profile 0")
		}
	case Conjunction:
		if _, first := f.Actions[0].(Conjunction); first && f.Actions[0] != Action(a) {
			return nil // checked with the first one
		}
		return f.checkConjunctions()
	case SetGroup:
		if a.ID == 0 || a.ID > maxGroup {
			return fmt.Errorf("there is no group %d to look for", a.ID)
		}
	case Learn:
		if p := f.Match.Protocol; a.Timeout == 0 || a.Limit == 0 || a.VariantBits >= 32 || p == ARP || a.Family == 0 ||
			a.Family != p.Family() {
			return fmt.Errorf("%+[2]v cannot be learned from %[1]s packets", p, a)
		}
	case SetTunnel:
		if !a.isComplete() {
			return fmt.Errorf("a tunnel lacks its key, its ports or its other end: %+v", a)
		}
	case InPort, Normal, SetEthDst, SetEthSrc, MoveEthDstToSrc, SetEthDstByCT,
		MarkLonger, SetPktMark, Resubmit:
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
	case c.Table == math.MaxUint8:
		return fmt.Errorf("ct cannot send packets on to table %d", c.Table)
	case c.marks() && !c.Commit:
		return fmt.Errorf("ct sets a mark without commit")
	case c.Mark&^c.MarkMask != 0 && c.MarkMask != 0:
		return fmt.Errorf("ct sets the mark 0x%x outside of its mask 0x%x", c.Mark, c.MarkMask)
	case c.EthSrc && c.Mark == 0:
		return fmt.Errorf("ct stores a MAC without setting a mark")
	case translates && !c.Commit:
		return fmt.Errorf("ct translates without commit")
	case n == NAT{Kind: NATSrc}: // needs no address
	case translates && (!n.Addr.IsValid() || cluster.FamilyOf(n.Addr) != p.Family()):
		return fmt.Errorf("ct cannot translate %s packets to %s", p, n.Addr)
	case !translates && (n.Addr.IsValid() || n.PortMin != 0):
		return fmt.Errorf("ct has an address or a port without src or dst")
	case n.PortMax < n.PortMin || n.PortMin == 0 && n.PortMax != 0:
		return fmt.Errorf("ct has the port range %d-%d", n.PortMin, n.PortMax)
	}
	return nil
}

// checkPort rejects the names that OpenFlow reserves.
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

// MaxConjunctions limits the Conjunctions of a flow: 4 090 do not fit in one message, and each
// costs time when a packet matches the flow.
const MaxConjunctions = 2000

func (f *Flow) checkConjunctions() error {
	switch {
	case len(f.Actions) > MaxConjunctions:
		return fmt.Errorf("%d conjunctions are more than %d", len(f.Actions), MaxConjunctions)
	case f.Match.ConjID != 0:
		return fmt.Errorf("a flow that matches a conj_id is a clause of another conjunction")
	}
	ids := make(map[uint32]bool, len(f.Actions))
	for _, x := range f.Actions {
		c, ok := x.(Conjunction)
		switch {
		case !ok:
			return fmt.Errorf("a flow with a conjunction has another action")
		case c.ID == 0 || c.Of < 2 || c.Clause == 0 || c.Clause > c.Of:
			return fmt.Errorf("conjunction %d has no clause %d of %d", c.ID, c.Clause, c.Of)
		case ids[c.ID]:
			return fmt.Errorf("the flow is in two clauses of conjunction %d", c.ID)
		}
		ids[c.ID] = true
	}
	return nil
}
