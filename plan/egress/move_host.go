package egress

import (
	"net/netip"

	"hairpin/cluster"
	"hairpin/datapath/nft"
	"hairpin/plan/node"
)

// hostMoves plans the host's part for moving addresses of its links. The kernel can translate to an
// address that it does not have. So the old node removes the address at once, and does not answer
// for it. The new one has it, and would reject packets that it does not know: it sends a copy to
// the old one instead. nft can copy packets only in tables of one family.
type hostMoves struct {
	owner  cluster.Owner
	tables nft.State
}

// forwardUnknown forwards packets that this node does not know, unless the other node sent them.
func (h *hostMoves) forwardUnknown(a netip.Addr, here, there networkEnd, known bool) {
	if !known {
		h.rule(a, here, nft.Drop{}, "moves: nobody may know", nil)
		return
	}
	h.rule(a, here, nft.Drop{}, "moves: not in circles", nft.EtherSrc{MAC: there.mac})
	h.rule(a, here, nft.Dup{To: there.at, Device: here.link.Name}, "moves: the other node may know", nil)
	h.rule(a, here, nft.Drop{}, "moves: a copy is on its way", nil)
}

func (h *hostMoves) rule(a netip.Addr, here networkEnd, do nft.Statement, why string, more nft.Match) {
	f := nft.IP
	if a.Is6() {
		f = nft.IP6
	}
	if h.tables == nil {
		h.tables = nft.State{}
	}
	if h.tables[f] == nil {
		h.tables[f] = &nft.Table{Chains: map[string]*nft.Chain{
			node.ChainMoves: {Name: node.ChainMoves, Type: "filter", Hook: "prerouting", Priority: node.HookMoves},
		}}
	}
	c := h.tables[f].Chains[node.ChainMoves]
	r := nft.Rule{
		Matches: []nft.Match{nft.InInterface{Name: here.link.Name}, nft.AddrIn{Dst: true, Prefix: node.HostPrefix(a)},
			nft.CTUnknown},
		Do: do, Comment: why, Owner: h.owner,
	}
	if more != nil {
		r.Matches = append(r.Matches, more)
	}
	c.Rules = append(c.Rules, r)
}
