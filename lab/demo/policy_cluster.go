package demo

import (
	"fmt"
	"slices"
)

// noDefinition is where there are no ClusterNetworkPolicies.
var noDefinition = Exception{
	labs{"objects of an API server", func(w *world) bool { _, api := w.objects.(*kubeAPI); return api }},
	"the API server does not have the definition of ClusterNetworkPolicies"}

// clusterSets are ClusterNetworkPolicies for the isolated pod, some beside NetworkPolicies.
func clusterSets() []policySet {
	const (
		pods   = "{namespaces: {}}"
		remote = "{pods: {namespaceSelector: {}, podSelector: {matchLabels: {target: podremote}}}}"
		admin  = "tier: Admin, priority: 10, "
		base   = "tier: Baseline, priority: 10, "
	)
	beside, toOwn := probes("", fromOwnHost, ownHostVIP, ownHostPort, toItself), probes("", toOwnHost, toOwnVIP)
	own := slices.Concat(beside, toOwn)
	fromPods := probes("", fromNeighbour, fromFar, byService, byFarService, fromRemote, remoteService)
	fromLocal := probes("", fromNeighbour, fromFar, byService, byFarService)
	fromOne := probes("", fromRemote, remoteService)
	fromOthers := probes("", fromOtherHost, otherHostVIP, clientHere, clientThere, clientLocal)
	toPods, toOthers := probes("", toNeighbour, toFar, toFarService), probes("", toClient, toOtherHost, toOtherVIP)
	nodes := "egress: [{action: Deny, to: [{networks: [172.18.0.100/32, 'fc00:f853:ccd::64/128']}, {nodes: {}}]}]"
	return []policySet{
		{name: "Admin denies what a NetworkPolicy accepts", spec: always("ingress: [{}]"),
			cluster: []string{admin + "ingress: [{action: Deny, from: [" + remote + "]}]"},
			passes:  slices.Concat(own, fromLocal, fromOthers, toPods, toOthers), drops: fromOne},
		{name: "Admin accepts what NetworkPolicies do not", spec: always("policyTypes: [Ingress]"),
			cluster: []string{admin + "ingress: [{action: Accept, from: [" + remote + "]}]"},
			passes:  slices.Concat(own, fromOne, toPods, toOthers), drops: slices.Concat(fromLocal, fromOthers)},
		{name: "Admin passes to NetworkPolicies", spec: always("ingress: [{}]"),
			cluster: []string{admin + "ingress: [{action: Pass, from: [" + remote + "]}, {action: Deny, from: [" +
				pods + "]}]"},
			passes: slices.Concat(own, fromOne, fromOthers, toPods, toOthers), drops: fromLocal},
		{name: "Admin of the first priority decides",
			cluster: []string{"tier: Admin, priority: 11, ingress: [{action: Deny, from: [" + pods + "]}]",
				admin + "ingress: [{action: Accept, from: [" + pods +
					"], protocols: [{tcp: {destinationPort: {range: " +
					"{start: 8000, end: 8100}}}}]}]"},
			passes: slices.Concat(own, fromOthers, probes("tcp", fromNeighbour, fromFar, byFarService, fromRemote)),
			drops:  probes("udp", fromNeighbour, fromFar, byFarService, fromRemote)},
		{name: "Baseline without NetworkPolicies",
			cluster: []string{base + "ingress: [{action: Accept, from: [" + remote +
				"]}, {action: Deny, from: [" + pods + "]}], egress: [{action: Deny, to: [" + pods + "]}]"},
			passes: slices.Concat(own, fromOne, fromOthers, toOthers), drops: slices.Concat(fromLocal, toPods)},
		{name: "Baseline with NetworkPolicies", spec: always("ingress: [{}]"),
			cluster: []string{base + "ingress: [{action: Deny, from: [" + pods + "]}]"},
			passes:  slices.Concat(own, fromPods, fromOthers, toPods, toOthers)},
		{name: "egress to networks and nodes", cluster: []string{admin + nodes},
			passes: slices.Concat(beside, fromPods, fromOthers, toPods), drops: slices.Concat(toOwn, toOthers)},
		{name: "a peer that is not known", cluster: []string{admin +
			"egress: [{action: Pass, to: [{domainNames: [example.org]}]}]"},
			passes: slices.Concat(beside, fromPods, fromOthers), drops: slices.Concat(toOwn, toPods, toOthers)},
	}
}

// clusterPolicy returns the manifest of a ClusterNetworkPolicy that selects pods with a label
// target.
func clusterPolicy(name, target, spec string) string {
	return fmt.Sprintf("{apiVersion: policy.networking.k8s.io/v1beta1, kind: ClusterNetworkPolicy, "+
		"metadata: {name: %s}, "+
		"spec: {subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {target: %s}}}}, %s}}", name, target,
		spec)
}
