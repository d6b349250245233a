package plan

import (
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
)

// prioClusterIP is the priority of a cluster IP outside of the ranges, in tables where an external IP has prioVIP.
const prioClusterIP = prioVIP + 1

// outOfRange serves a cluster IP outside of service-cidrs, as after a change of the API server's range: this address has by
// itself what the ranges have. It returns false where the address cannot be served.
func (b *balancer) outOfRange(s *Stack, f *cluster.Frontend) bool {
	ip := f.ClusterIP
	if within(s.Services, ip) {
		return true
	}
	if ip == s.Address.Addr() || b.Node.HasAddress(ip) || within(s.Cluster, ip) || within(s.inside(), ip) {
		b.problem(f, "spec.clusterIPs", "%s belongs to a host or is in another range of the cluster: not served", ip)
		return false
	}
	if b.Node.Gateway.NodeLocal {
		b.problem(f, "spec.clusterIPs", "%s is not within [kubernetes] service-cidrs: hosts with node-local = dgp do not reach it", ip)
	}
	to := single(ip)
	z := zone{Env: *b.Env, owner: f.Owner, rows: b.rows}
	z.toHost(s, claims.PolicyServices, to.String(), "") // other ports: the host rejects them
	route := host.Route{
		RouteKey: host.RouteKey{Table: mainTable, Prefix: to}, Link: b.serviceLink(), Via: s.MasqNext,
		Src: s.Address.Addr(), MTU: b.Config.MTU, Owner: f.Owner,
	}
	if b.board != nil {
		route.Via = s.MasqOVN
		b.board.owner = f.Owner
		b.board.toVIPs(prioClusterIP, to)
		b.board.add(claims.TableArrives, prioClusterIP,
			flow.Match{InPort: claims.ServiceHost, Protocol: words(s.Family).ip, Dst: to}, track(claims.ZoneServices, claims.TableToVIP))
	} else {
		z.noVIP(s, to)
		b.wire.owner = f.Owner
		b.wire.hostToServices(s, []netip.Prefix{to})
	}
	if b.routes == nil {
		b.routes = map[host.RouteKey]host.Route{}
	}
	b.routes[route.RouteKey] = route
	return true
}
