package plan

import (
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/host"
)

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
	b.engine.clusterIP(s, to, f.Owner)
	if b.routes == nil {
		b.routes = map[host.RouteKey]host.Route{}
	}
	r := host.Route{
		RouteKey: host.RouteKey{Table: mainTable, Prefix: to}, Link: b.serviceLink(), Via: b.serviceHop(s),
		Src: s.Address.Addr(), MTU: b.Config.MTU, Owner: f.Owner,
	}
	b.routes[r.RouteKey] = r
	return true
}
