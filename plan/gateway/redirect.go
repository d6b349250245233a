package gateway

import (
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
	"hairpin/datapath/redirect"
	"hairpin/pipeline"
	"hairpin/plan/node"
)

// Redirection plans the eBPF programs, and the path of their packets through the gateway bridge:
// from the bridge's own port to the gateway router, and back. Packets to NodePorts are not
// translated: on this bridge, nothing else has one of the host's other addresses as its source or
// destination. Packets to external addresses are handled like the host's own packets to Services,
// because an external machine or pods with an egress address may have these addresses, too.
func Redirection(e node.Env) (datapath.State, []cluster.Problem) {
	if len(e.Redirect) == 0 {
		return datapath.State{}, nil
	}
	g, b := &e.Node.Gateway, node.NewBridge(&e, claims.FeatureRedirect)
	programs := map[string]redirect.Program{g.Bridge: {Link: g.Bridge, Name: claims.ProgramReply, MAC: g.MAC,
		MTU: e.Config.MTU, Owner: b.Owner}}
	for _, l := range e.Redirect {
		programs[l] = redirect.Program{Link: l, Name: claims.ProgramRequest, Owner: b.Owner}
	}
	mac, _ := cluster.ParseMAC(claims.RedirectMAC) // the constant is valid
	asSource := flow.SetEthDst{MAC: mac}           // GatewayToHost makes it the source MAC
	for i := range e.Stacks {
		s := &e.Stacks[i]
		ip, host := node.Vocab(s.Family).IP, node.HostPrefix(s.MasqHost)
		if e.Engine.ServiceBridge { // claims.ServiceBridge knows the sender of each connection
			b.Classify(node.PrioRedirect, flow.Match{InPort: flow.Local, EthSrc: mac, Protocol: ip},
				flow.Output{Port: claims.ServicesPatch})
			b.Classify(node.PrioRedirectReply, flow.Match{InPort: claims.ServicesPatch, EthDst: mac, Protocol: ip},
				flow.Resubmit{Table: pipeline.GatewayToHost})
			continue
		}
		tracked := flow.CT{Table: pipeline.GatewayToHost, Zone: claims.ZoneHost, NAT: flow.NAT{Kind: flow.NATUndo}}
		b.Classify(node.PrioRedirect, flow.Match{InPort: flow.Local, EthSrc: mac, Protocol: ip},
			flow.CT{Commit: true, Table: pipeline.GatewayToRouter, Zone: claims.ZoneHost,
				NAT: flow.NAT{Kind: flow.NATSrc, Addr: s.MasqHost}})
		b.Classify(node.PrioRedirectReply, flow.Match{InPort: b.OVN, Protocol: ip, Dst: host}, asSource, tracked)
		for _, a := range s.Redirect {
			b.Classify(node.PrioService, flow.Match{InPort: flow.Local, Protocol: ip, Dst: node.HostPrefix(a)},
				flow.Resubmit{Table: pipeline.GatewayToRouter})
			b.Classify(node.PrioService, flow.Match{InPort: b.OVN, Protocol: ip, Src: node.HostPrefix(a)}, asSource,
				flow.Resubmit{Table: pipeline.GatewayToHost})
			b.Classify(node.PrioRedirect, flow.Match{InPort: b.OVN, Protocol: ip, Src: node.HostPrefix(a), Dst: host},
				asSource, tracked)
		}
	}
	if e.Mode.Uplink { // no external machine may send as the bridge
		b.Classify(node.PrioRedirect, flow.Match{InPort: b.Uplink, EthSrc: mac}, flow.Drop{})
	}
	return datapath.State{Bridge: ovs.State{Flows: b.Flows}, Redirect: redirect.State{Programs: programs}}, nil
}
