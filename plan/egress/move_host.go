package egress

import (
	"net/netip"
	"slices"

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

// forwardUnknown forwards packets that this node does not know, unless another node sent them.
// later limits this to later packets of TCP connections.
func (h *hostMoves) forwardUnknown(a netip.Addr, own networkEnd, peers []networkEnd, later bool) {
	var only []nft.Match
	if later {
		only = append(only, nft.NoSYN{})
	}
	for _, p := range peers {
		h.rule(a, own, nft.Drop{}, "moves: sent by a peer", append(slices.Clone(only), nft.EtherSrc{MAC: p.mac}))
	}
	for _, p := range peers {
		if p.mayForwardTo() {
			h.rule(a, own, nft.Dup{To: p.at, Device: own.link.Name}, "moves: copy to a peer", only)
		}
	}
	h.rule(a, own, nft.Drop{}, "moves: unknown connections", only)
}

func (h *hostMoves) rule(a netip.Addr, own networkEnd, do nft.Statement, why string, more []nft.Match) {
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
	c.Rules = append(c.Rules, nft.Rule{
		Matches: append([]nft.Match{nft.InInterface{Name: own.link.Name},
			nft.AddrIn{Dst: true, Prefix: node.HostPrefix(a)}, nft.CTNewOrInvalid}, more...),
		Do: do, Comment: why, Owner: h.owner,
	})
}
