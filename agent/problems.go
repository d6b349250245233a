package agent

import (
	"fmt"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/hostnet"
)

// nodeProblems are those of the node that are not in its plan.
func (a *agent) nodeProblems() []cluster.Problem {
	return slices.Concat(a.uplinkProblem(), a.wireProblem(), a.modeProblem(), a.cni.Problems(), a.redirectProblem(), a.nodeLocalProblem(),
		a.probeProblem(), a.tableProblem())
}

// tableProblem is why pods of EgressServices have no way out of this node.
func (a *agent) tableProblem() (list []cluster.Problem) {
	if a.all == nil || a.local.Own == nil {
		return nil
	}
	for _, name := range a.all.TableNames() {
		if a.local.Own.Table(name) == nil {
			list = append(list, cluster.Problem{
				Owner: cluster.Owner{Kind: "Node", Name: a.node}, Field: "EgressService spec.network",
				Message: fmt.Sprintf("the host has no VRF %q: pods that would leave by it here are cut off from outside", name),
			})
		}
	}
	return list
}

// redirects reports whether eBPF programs lead NodePort traffic here.
func (a *agent) redirects() bool {
	return a.config.Cluster.Gateway.NodePortPath == cluster.PathRedirect
}

// redirectProblem is why this node's NodePorts take another way than [gateway] nodeport-path says, or what is lost on it.
func (a *agent) redirectProblem() []cluster.Problem {
	p := cluster.Problem{Owner: cluster.Owner{Kind: "Node", Name: a.node}, Field: "[gateway] nodeport-path"}
	switch {
	case a.noRedirect != nil:
		p.Message = fmt.Sprintf("nft serves NodePorts: this kernel lacks %v", a.noRedirect)
	case a.noConntrack != nil:
		p.Message = fmt.Sprintf("connections that this node begins from a Service's port get no replies: this kernel lacks %v", a.noConntrack)
	default:
		return nil
	}
	return []cluster.Problem{p}
}

// probeProblem is why this node cannot take part in the probing of nodes for egress addresses.
func (a *agent) probeProblem() []cluster.Problem {
	err := a.prober.Problem()
	if err == nil {
		return nil
	}
	return []cluster.Problem{{
		Owner:   cluster.Owner{Kind: "Node", Name: a.node},
		Message: fmt.Sprintf("neither probes nodes for egress addresses nor answers probes: %v", err),
	}}
}

// nodeLocalProblem is why the host's way to Services is not that of [gateway] node-local.
func (a *agent) nodeLocalProblem() []cluster.Problem {
	c := &a.config.Cluster
	if c.Gateway.NodeLocal != cluster.LocalDGP || c.DistributedPort() {
		return nil
	}
	return []cluster.Problem{{
		Owner: cluster.Owner{Kind: "Node", Name: a.node}, Field: "[gateway] node-local",
		Message: fmt.Sprintf("%s needs service-engine = %s: with %s the host gets to Services by %s", cluster.LocalDGP, cluster.EngineOVN, c.ServiceEngine, claims.ServiceHost),
	}}
}

// modeProblem is why the node's bridges are not those of its gateway mode.
func (a *agent) modeProblem() []cluster.Problem {
	if a.seen.ModeErr == nil {
		return nil
	}
	return []cluster.Problem{{
		Owner: cluster.Owner{Kind: "Node", Name: a.node}, Field: "[gateway] mode",
		Message: fmt.Sprintf("the bridges of mode %s cannot be made: %v", a.config.Cluster.Gateway.Mode, a.seen.ModeErr),
	}}
}

// wireProblem is why the node does not reach others, or loses full packets of pods on the way.
func (a *agent) wireProblem() []cluster.Problem {
	p := cluster.Problem{Owner: cluster.Owner{Kind: "Node", Name: a.node}, Field: "[gateway] interface"}
	w, bridge := &a.seen.Wire, a.found.Gateway.Bridge
	overhead := hostnet.Overhead6
	if slices.ContainsFunc(a.found.Gateway.Addresses, func(x netip.Prefix) bool { return x.Addr().Is4() }) {
		overhead = hostnet.Overhead4
	}
	switch pods := a.config.Cluster.MTU; {
	case w.Missing && w.Own:
		p.Message = fmt.Sprintf("bridge %s has no uplink: there is no device %s, so the machine keeps its network as it is; when the device has another "+
			"name now, run `ovs-vsctl del-br %s`: the agent makes the bridge again, with the device of the default route", bridge, w.Device, bridge)
	case w.Missing:
		p.Message = fmt.Sprintf("bridge %s has no uplink: there is no device %s, so the machine keeps its network as it is; when the device has another "+
			"name now, make that a port of the bridge in its place", bridge, w.Device)
	case w.Down:
		p.Message = fmt.Sprintf("%s is down or has no carrier: the node reaches no other", w.Device)
	case w.MTU != 0 && w.MTU < pods+overhead:
		p.Field = "[default] mtu"
		p.Message = fmt.Sprintf("%s has an MTU of %d, so full packets of pods (%d bytes) to other nodes are lost: they need %d in a tunnel; "+
			"set mtu = %d on every node", w.Device, w.MTU, pods, pods+overhead, w.MTU-overhead)
	default:
		return nil
	}
	return []cluster.Problem{p}
}

// uplinkProblem is what the administrator must know of the uplink.
func (a *agent) uplinkProblem() []cluster.Problem {
	p := cluster.Problem{Owner: cluster.Owner{Kind: "Node", Name: a.node}, Field: "[gateway] interface"}
	bridge := a.config.Cluster.Gateway.Interface
	switch {
	case a.seen.UplinkErr != nil && !cluster.ModeNamed(a.config.Cluster.Gateway.Mode).Uplink:
		p.Message = fmt.Sprintf("bridge %s keeps its device: %v", bridge, a.seen.UplinkErr)
	case a.seen.UplinkErr != nil:
		p.Message = fmt.Sprintf("bridge %s has no uplink: %v", bridge, a.seen.UplinkErr)
	case a.seen.Contested:
		p.Message = fmt.Sprintf("another program gives the uplink again and again what was moved to bridge %s: make the DHCP client or network manager leave the uplink alone", bridge)
	default:
		return nil
	}
	return []cluster.Problem{p}
}
