package ovnlb

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/nb"
	"hairpin/datapath/ovs"
	"hairpin/plan/node"
	"hairpin/plan/service"
)

// Engine writes Frontends as load balancers: one row for each variant, so that northd handles a
// changed endpoint without looking at other rows. It implements service.Engine.
type Engine struct {
	*node.Env
	rows    nb.State
	gateway *node.Bridge
	options map[lbOptionKey]map[string]string // rows share them
}

// NewEngine returns an Engine without rows.
func NewEngine(e *node.Env) *Engine {
	return &Engine{
		Env: e, rows: make(nb.State, len(e.Frontends)), gateway: node.NewBridge(e, claims.FeatureServices),
		options: map[lbOptionKey]map[string]string{},
	}
}

// State returns the planned rows and flows.
func (b *Engine) State() (datapath.State, []cluster.Problem) {
	return datapath.State{NB: b.rows, Bridge: ovs.State{Flows: b.gateway.Flows}}, nil
}

// ClusterIP plans what a ClusterIP outside of the configured ranges of Services needs.
func (b *Engine) ClusterIP(s *node.Stack, to netip.Prefix, owner cluster.Owner) {
	z := node.Zone{Env: *b.Env, Owner: owner, Rows: b.rows}
	dropWithoutVIP(&z, s, to)
	b.gateway.Owner = owner
	hostToServices(b.gateway, s, []netip.Prefix{to})
}

// Frontend plans the load balancers for the ClusterIP and the proxy port.
func (b *Engine) Frontend(x *service.Front) {
	b.gateway.Owner = x.Owner
	b.addLoadBalancer(x, lbVariant{vips: []netip.AddrPort{netip.AddrPortFrom(x.ClusterIP, x.Port)}, to: x.Internal})
	b.addProxyPorts(x)
}

// External adds rows for NodePorts or external addresses:
//   - for pods, on the node switch, with all endpoints. Addresses with source ranges have none
//     there: the host checks the source (routeRestricted).
//   - for external clients, on the gateway router, if these do not come by the host. Under policy
//     Local, the row has the local endpoints. Otherwise the pods' row is on both, and a further one
//     (":guarded") has the addresses with source ranges, which flows of the gateway bridge check.
func (b *Engine) External(x *service.Front, variant service.Variant, vips []netip.AddrPort) {
	var open, restricted, external []netip.AddrPort // restricted: with source ranges; external: from the uplink
	redirected := false
	for _, v := range vips {
		byProgram := service.Redirects(b.Env, x, variant, v)
		redirected = redirected || byProgram
		if x.RestrictsSources(v) {
			restricted = append(restricted, v)
		} else {
			open = append(open, v)
		}
		if b.Mode.ClientsByHost {
			continue
		}
		if variant == service.External || v.Addr() == x.Stack.Address.Addr() {
			external = append(external, v)
			if slices.Contains(x.Stack.Redirect, v.Addr()) {
				addReplies(b.gateway, x, v)
			}
			if len(x.LocalHost) == 0 { // else the host serves new clients
				addExternalAddress(b.gateway, x, v)
			}
		} else if byProgram {
			external = append(external, v)
		}
	}
	pods := lbVariant{name: variant, vips: open, to: x.Cluster, group: node.GroupSwitch, noARP: true}
	switch {
	case b.Mode.ClientsByHost:
		if redirected { // to the gateway router
			pods.group = ""
		}
	case !x.ExternalLocal:
		pods.group = ""
		b.addLoadBalancer(x, lbVariant{name: variant + ":guarded", vips: restricted, to: x.Cluster,
			group: node.GroupRouter, noARP: true})
	default:
		b.addLoadBalancer(x, lbVariant{name: variant + ":local", vips: external, to: x.Local, group: node.GroupRouter,
			keepClientIP: true, noARP: true})
	}
	b.addLoadBalancer(x, pods)
}

// addProxyPorts serves clients that come through the host, which translates their connections to
// proxy ports.
func (b *Engine) addProxyPorts(x *service.Front) {
	if (x.NodePort == 0 || !b.Config.Gateway.NodePort) && len(x.ExternalIPs)+len(x.LoadBalancerIPs) == 0 {
		return
	}
	port := x.ProxyPort()
	if x.UsesProxyPort() {
		b.addLoadBalancer(x, lbVariant{name: service.AllByHost,
			vips: []netip.AddrPort{netip.AddrPortFrom(x.Stack.MasqAll, port)}, to: x.Cluster, group: node.GroupRouter,
			noARP: true})
	}
	// If the only local endpoints are programs of the host, the host serves them itself.
	if x.ExternalLocal && (len(x.LocalHost) == 0 || len(x.LocalPods) > 0) {
		own := lbVariant{name: service.OwnByHost, vips: []netip.AddrPort{netip.AddrPortFrom(x.Stack.MasqLocal, port)},
			to: x.LocalPods, group: node.GroupSwitch, noARP: true}
		if !b.Mode.PodsByHost { // the pod's reply comes by the gateway router
			own.group, own.keepClientIP = node.GroupRouter, true
		}
		b.addLoadBalancer(x, own)
	}
}

// lbVariant is one variant of a load balancer for a Frontend.
type lbVariant struct {
	name         service.Variant // after the Frontend's key, in the name of the row
	vips         []netip.AddrPort
	to           []netip.AddrPort
	group        string // empty = both node switch and gateway router
	keepClientIP bool   // the gateway router does not translate the client's address
	noARP        bool   // routers do not answer ARP for the address
}

// lbOptionKey has what a row's options depend on.
type lbOptionKey struct{ rejectNoBackends, dropNoBackends, keepClientIP, noARP bool }

// addLoadBalancer adds the load balancer of a variant: one row for node switch and gateway router,
// or one for each if a backend is this node's address. That address is also the gateway router's
// own, so a packet to it would end there. The router's row has the host's masquerade address
// instead (docs/design/origins.md#load-balancers).
func (b *Engine) addLoadBalancer(x *service.Front, v lbVariant) {
	if len(v.vips) == 0 {
		return
	}
	// No endpoint at all: rejected. Policy Local and no local endpoint: dropped, so that the client
	// tries elsewhere.
	key := lbOptionKey{rejectNoBackends: len(x.Cluster) == 0, dropNoBackends: len(v.to) == 0 && len(x.Cluster) > 0,
		keepClientIP: v.keepClientIP, noARP: v.noARP}
	if key.rejectNoBackends {
		v.to = nil
	}
	// Affinity uses a hash of the client's address, the same for all VIPs of the port and on every
	// node, however long the timeout is. OVN's own affinity_timeout drops the first packet of each
	// client, and is limited to 65535 s.
	affinity := x.Affinity > 0
	if affinity {
		v.to = affinitySlots(v.to)
	}
	row := nb.LoadBalancer{
		Name: x.Key() + string(v.name), Protocol: x.Protocol, VIPs: vipsOf(v.vips, v.to),
		Options: b.lbOptions(key), Groups: []string{node.GroupOf(cmp.Or(v.group, node.GroupBoth), x.Owner)},
		Owner: x.Owner, Affinity: affinity,
	}
	own := x.Stack.Address.Addr()
	if v.group == node.GroupSwitch || !slices.ContainsFunc(v.to,
		func(a netip.AddrPort) bool { return a.Addr() == own }) {
		b.rows.Add(&row)
		return
	}
	masqueraded := slices.Clone(v.to)
	for i, a := range masqueraded {
		if a.Addr() == own {
			masqueraded[i] = netip.AddrPortFrom(x.Stack.MasqHost, a.Port())
		}
	}
	if !affinity {
		slices.SortFunc(masqueraded, netip.AddrPort.Compare)
	}
	router := row
	router.VIPs = vipsOf(v.vips, masqueraded)
	if v.group == "" {
		sw := row
		sw.Name, sw.Groups = row.Name+":switch", []string{node.GroupOf(node.GroupSwitch, x.Owner)}
		router.Name, router.Groups = row.Name+":router", []string{node.GroupOf(node.GroupRouter, x.Owner)}
		b.rows.Add(&sw)
	}
	b.rows.Add(&router)
}

func vipsOf(vips, to []netip.AddrPort) []nb.VIP {
	list := make([]nb.VIP, 0, len(vips))
	for _, v := range vips {
		list = append(list, nb.VIP{Addr: v, Backends: to})
	}
	return list
}

// lbOptions returns the options of a load balancer; rows share them.
func (b *Engine) lbOptions(key lbOptionKey) map[string]string {
	if o, ok := b.options[key]; ok {
		return o
	}
	var hairpin []string
	for i := range b.Stacks {
		hairpin = append(hairpin, b.Stacks[i].MasqHairpin.String())
	}
	o := map[string]string{
		"reject": strconv.FormatBool(!key.dropNoBackends), // no endpoint: TCP reset or ICMP port unreachable
		"event":  "false",                                 // "no endpoint" events are unused
		// A gateway router translates what it load-balances, but must not translate a reset that it
		// made itself: the host would get it from another address than it used.
		"skip_snat":       strconv.FormatBool(key.rejectNoBackends || key.keepClientIP),
		"hairpin_snat_ip": strings.Join(hairpin, " "), // source for a pod that reaches itself
	}
	if key.noARP {
		o["neighbor_responder"] = "none"
	}
	b.options[key] = o
	return o
}
