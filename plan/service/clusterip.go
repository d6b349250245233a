package service

import (
	"hairpin/claims"
	"hairpin/datapath/host"
	"hairpin/plan/admission"
	"hairpin/plan/node"
)

// clusterIP plans for a cluster IP outside of service-cidrs, such as after a change of the API
// server's range, what the ranges have: a route, and a policy of the cluster router. It returns
// false if the cluster IP cannot be served.
func (p *hostPlanner) clusterIP(s *node.Stack, f *admission.Frontend) bool {
	ip := f.ClusterIP
	if node.InRanges(s.Services, ip) {
		return true
	}
	if ip == s.Address.Addr() || p.Node.HasAddress(ip) || node.InRanges(s.Cluster, ip) ||
		node.InRanges(s.InternalRanges(), ip) {
		p.problem(f, "spec.clusterIPs", "%s belongs to a host or is in another range of the cluster: not served", ip)
		return false
	}
	if p.Node.Gateway.NodeLocal {
		p.problem(f, "spec.clusterIPs",
			"%s is not within [kubernetes] service-cidrs: hosts with node-local = dgp do not reach it", ip)
	}
	to := node.HostPrefix(ip)
	z := node.Zone{Env: *p.Env, Owner: f.Owner, Rows: p.rows}
	z.PodsToHost(s, claims.PolicyServices, to.String(), "") // the host rejects ports that no Service has
	p.engine.ClusterIP(s, to, f.Owner)
	if p.routes == nil {
		p.routes = map[host.RouteKey]host.Route{}
	}
	r := host.Route{
		RouteKey: host.RouteKey{Table: node.MainTable, Prefix: to}, Link: p.ServiceLink(), Via: p.ServiceHop(s),
		Src: s.Address.Addr(), MTU: p.Config.MTU, Owner: f.Owner,
	}
	p.routes[r.RouteKey] = r
	return true
}
