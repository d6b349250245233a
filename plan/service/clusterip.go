package service

import (
	"hairpin/claims"
	"hairpin/datapath/host"
	"hairpin/plan/admission"
	"hairpin/plan/node"
)

// admitClusterIP reports whether a cluster IP can be served. For one outside of service-cidrs, such
// as after a change of the API server's range, it adds what the ranges have: a route, and a policy
// of the cluster router.
func (b *planner) admitClusterIP(s *node.Stack, f *admission.Frontend) bool {
	ip := f.ClusterIP
	if node.InRanges(s.Services, ip) {
		return true
	}
	if ip == s.Address.Addr() || b.Node.HasAddress(ip) || node.InRanges(s.Cluster, ip) ||
		node.InRanges(s.InternalRanges(), ip) {
		b.problem(f, "spec.clusterIPs", "%s belongs to a host or is in another range of the cluster: not served", ip)
		return false
	}
	if b.Node.Gateway.NodeLocal {
		b.problem(f, "spec.clusterIPs",
			"%s is not within [kubernetes] service-cidrs: hosts with node-local = dgp do not reach it", ip)
	}
	to := node.HostPrefix(ip)
	z := node.Zone{Env: *b.Env, Owner: f.Owner, Rows: b.rows}
	z.PodsToHost(s, claims.PolicyServices, to.String(), "") // other ports: the host rejects them
	b.engine.ClusterIP(s, to, f.Owner)
	if b.routes == nil {
		b.routes = map[host.RouteKey]host.Route{}
	}
	r := host.Route{
		RouteKey: host.RouteKey{Table: node.MainTable, Prefix: to}, Link: b.ServiceLink(), Via: b.ServiceHop(s),
		Src: s.Address.Addr(), MTU: b.Config.MTU, Owner: f.Owner,
	}
	b.routes[r.RouteKey] = r
	return true
}
