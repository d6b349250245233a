package plan

import (
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/redirect"
)

const fieldPath = "[gateway] nodeport-path"

// redirect finds the links whose packets the programs can take, and says why the others are left to nft.
func (c *checker) redirect(e *Env) {
	if !e.Node.Gateway.Redirect {
		return
	}
	nodePort := func(a netip.Addr) bool { return e.Config.Gateway.NodePort && e.nodePortOn(a) }
	for i := range e.Node.Links {
		l := &e.Node.Links[i]
		nodePorts := slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return !p.IsSingleIP() && nodePort(p.Addr()) })
		fit := l.MAC != cluster.MAC{} && l.Table == 0 && (l.MTU == 0 || l.MTU >= e.Config.MTU)
		switch {
		case !slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return !p.IsSingleIP() }) || !fit && !nodePorts:
		case l.MAC == cluster.MAC{}:
			c.problem(fieldPath, "nft serves NodePorts that arrive at %s, which is no Ethernet link", l.Name)
		case l.Table != 0:
			c.problem(fieldPath, "nft serves NodePorts that arrive at %s, which belongs to a VRF", l.Name)
		case l.MTU != 0 && l.MTU < e.Config.MTU:
			c.problem(fieldPath, "nft serves NodePorts that arrive at %s, whose MTU %d is below the pods' %d", l.Name, l.MTU, e.Config.MTU)
		default:
			e.Redirect = append(e.Redirect, l.Name)
			for i := range e.Stacks {
				s := &e.Stacks[i]
				for _, p := range l.Addresses {
					if a := p.Addr(); slices.Contains(s.Others, a) && nodePort(a) {
						s.Redirect = append(s.Redirect, a)
					}
				}
			}
		}
	}
	for i := range e.Stacks {
		s := &e.Stacks[i]
		slices.SortFunc(s.Redirect, netip.Addr.Compare)
		s.Redirect = slices.Compact(s.Redirect) // two links may have one address
	}
}

// redirection is the programs, and the way of what they bring through the gateway bridge: from the bridge's own port to the gateway
// router, and back. To NodePorts, as it is: the host itself sends nothing there to an address of its own, and what comes from such an
// address is an answer. To external addresses as the host's own packets to Services, because others may have these, too: a machine outside, the bridge's
// uplink, pods with an egress address.
func redirection(e Env) (datapath.State, []cluster.Problem) {
	if len(e.Redirect) == 0 {
		return datapath.State{}, nil
	}
	g, b := &e.Node.Gateway, newBridge(&e, claims.FeatureRedirect)
	programs := map[string]redirect.Program{g.Bridge: {Link: g.Bridge, Name: claims.ProgramReply, MAC: g.MAC, MTU: e.Config.MTU, Owner: b.owner}}
	for _, l := range e.Redirect {
		programs[l] = redirect.Program{Link: l, Name: claims.ProgramRequest, Owner: b.owner}
	}
	mac, _ := cluster.ParseMAC(claims.RedirectMAC) // it is one
	answer := flow.SetEthDst{MAC: mac}             // TableToHost makes it the sender
	for i := range e.Stacks {
		s := &e.Stacks[i]
		ip, host := words(s.Family).ip, single(s.MasqHost)
		if g.OpenFlow { // which knows the sender of each connection
			b.classify(prioRedirect, flow.Match{InPort: flow.Local, EthSrc: mac, Protocol: ip}, flow.Output{Port: claims.ServicesPatch})
			b.classify(prioAnswered, flow.Match{InPort: claims.ServicesPatch, EthDst: mac, Protocol: ip}, flow.Resubmit{Table: claims.TableToHost})
			continue
		}
		tracked := flow.CT{Table: claims.TableToHost, Zone: claims.ZoneHost, NAT: flow.NAT{Kind: flow.NATUndo}}
		b.classify(prioRedirect, flow.Match{InPort: flow.Local, EthSrc: mac, Protocol: ip},
			flow.CT{Commit: true, Table: claims.TableToOVN, Zone: claims.ZoneHost, NAT: flow.NAT{Kind: flow.NATSrc, Addr: s.MasqHost}})
		b.classify(prioAnswered, flow.Match{InPort: b.ovn, Protocol: ip, Dst: host}, answer, tracked)
		for _, a := range s.Redirect {
			b.classify(prioService, flow.Match{InPort: flow.Local, Protocol: ip, Dst: single(a)}, flow.Resubmit{Table: claims.TableToOVN})
			b.classify(prioService, flow.Match{InPort: b.ovn, Protocol: ip, Src: single(a)}, answer, flow.Resubmit{Table: claims.TableToHost})
			b.classify(prioRedirect, flow.Match{InPort: b.ovn, Protocol: ip, Src: single(a), Dst: host}, answer, tracked)
		}
	}
	if e.Mode.Uplink { // nobody outside may send as the bridge
		b.classify(prioRedirect, flow.Match{InPort: b.uplink, EthSrc: mac}, flow.Drop{})
	}
	return datapath.State{Bridge: flow.State{Flows: b.flows}, Redirect: redirect.State{Programs: programs}}, nil
}

// redirects reports whether the programs lead external clients to an address. To a NodePort under policy Local they do not where pods
// leave by the host, past the gateway router, nor where the host is an endpoint: it could not answer a client's own address by that. To an
// external address under policy Local they do not either: the bridge changes the client's address; nor to the gateway router's own, from
// which it answers as the host's own endpoint asks. What is not for everybody is the host's to serve, too.
func (e *Env) redirects(x *front, name string, v netip.AddrPort) bool {
	switch {
	case x.guards(v):
		return false
	case name == wayNodePort:
		return slices.Contains(x.stack.Redirect, v.Addr()) && (!x.ExternalLocal || !e.Mode.PodsByHost && len(x.ownHost) == 0)
	}
	return len(e.Redirect) > 0 && !x.ExternalLocal && v.Addr() != x.stack.Address.Addr()
}
