package agent

import (
	"fmt"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
)

// nodeProblem returns a list of one problem of a Node.
func nodeProblem(node, field, format string, args ...any) []cluster.Problem {
	return []cluster.Problem{{
		Owner: cluster.NodeOwner(node), Field: field, Message: fmt.Sprintf(format, args...),
	}}
}

// nodeProblems returns the problems of the node that are not in its plan.
func (a *agent) nodeProblems() []cluster.Problem {
	return slices.Concat(a.host.problems(), a.pods.cni.Problems(), a.redirectProblem(), a.nodeLocalProblem(),
		a.egress.problems(), a.tableProblem())
}

// tableProblem reports networks of EgressServices for which this node has no VRF.
func (a *agent) tableProblem() (list []cluster.Problem) {
	own := a.host.local.Own
	if a.planned.merged == nil || own == nil {
		return nil
	}
	for _, name := range a.planned.merged.TableNames() {
		if own.Table(name) == nil {
			list = append(list, nodeProblem(a.node, "EgressService spec.network",
				"the host has no VRF %q: pods that would leave by it here are cut off from outside", name)...)
		}
	}
	return list
}

// redirects reports whether eBPF programs redirect NodePort traffic on this node.
func (a *agent) redirects() bool {
	return a.config.Cluster.Gateway.NodePortPath == cluster.PathRedirect
}

// redirectProblem reports why NodePorts do not use the path of [gateway] nodeport-path, or which
// connections that path loses.
func (a *agent) redirectProblem() []cluster.Problem {
	const field = "[gateway] nodeport-path"
	switch {
	case a.noRedirect != nil:
		return nodeProblem(a.node, field, "nft serves NodePorts: this kernel lacks %v", a.noRedirect)
	case a.noConntrack != nil:
		return nodeProblem(a.node, field, "connections that this node begins from a Service's port get no replies: "+
			"this kernel lacks %v", a.noConntrack)
	}
	return nil
}

// nodeLocalProblem reports why the host's path to Services is not that of [gateway] node-local.
func (a *agent) nodeLocalProblem() []cluster.Problem {
	c := &a.config.Cluster
	if c.Gateway.NodeLocal != cluster.LocalDGP || c.DistributedPort() {
		return nil
	}
	return nodeProblem(a.node, "[gateway] node-local",
		"%s needs service-engine = %s: with %s the host gets to Services by %s",
		cluster.LocalDGP, cluster.EngineOVN, c.ServiceEngine, claims.ServiceHost)
}
