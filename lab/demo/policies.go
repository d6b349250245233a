package demo

import (
	"fmt"

	"hairpin/lab/demo/nodeport"
)

// Values of Case.By besides the name of the expected endpoint. With several names, separated by |,
// any of them may reply.
const (
	refused = "refused" // a TCP reset or an ICMP error arrives at once
	dropped = "dropped" // nothing arrives
	closed  = "closed"  // the endpoint itself rejects: it has no listener
)

// More reasons of Case.Why.
const (
	whyKept     = "policy Local: the gateway router load-balances and leaves the source alone"
	whyKeptHost = "policy Local: nft on the host leads the client to the host's endpoint and leaves the source alone"
	whyIgnored  = "policy Local does not count for clients in the cluster; "
	whyNoneHere = "policy Local, and the node has no endpoint"
	whyNone     = "there is no endpoint anywhere"
	whyDeaf     = "the endpoint's own reset or ICMP error finds the way back"
	whyInner    = "no client outside can use this address of the host: it has no NodePorts"
	whyOpen     = "nft on the host replaces the own address by the ClusterIP, also 127.0.0.1 and ::1"
)

// nodePortCases returns the twelve cases of package nodeport, to the Services of the demo.
func nodePortCases() []Case {
	var list []Case
	for _, c := range nodeport.Cases() {
		to := map[string]string{"Cluster pod": "podlocal", "Local pod": "keeppod", "Cluster host": "hostself",
			"Local host": "keephost"}[c.Policy()+" "+c.Endpoint()]
		by := map[bool]string{false: "pod-a1", true: "host-a"}[c.Host]
		from := map[nodeport.Place]string{nodeport.Outside: "client", nodeport.Localhost: "host-a",
			nodeport.Pod: "pod-a2"}[c.From]
		saw := map[nodeport.Source]string{nodeport.Sender: from, nodeport.Join: join + "node-a",
			nodeport.Masquerade: masquerade}[c.Sees]
		paths := []string{"NodePort node-a"}
		if c.From == nodeport.Localhost {
			paths = append(paths, "localhost", "secondary node-a")
		}
		for _, path := range paths {
			list = append(list, Case{from, to, path, by, saw, fmt.Sprintf("case %d: %s", c.Number, c.Why)})
		}
	}
	return list
}

// innerCases returns cases of the host's addresses that no external client can use.
func innerCases() []Case {
	return []Case{
		{"host-a", "podlocal", management + "node-a", closed, "", whyInner},
		{"host-a", "podlocal", "masquerade", closed, "", whyInner},
		{"pod-a2", "podlocal", management + "node-a", closed, "", whyInner},
	}
}

// policyCases returns the cases of policies.yaml: traffic policies, addresses outside of the
// cluster's ranges, source ranges, and what must not be answered.
func policyCases() []Case {
	const a, b, c = "NodePort node-a", "NodePort node-b", "NodePort node-c"
	return []Case{
		// Policy Local: the source of external clients is kept.
		{"client", "elsewhere", c, "pod-c1", "client", whyKept},
		{"client", "elsewhere", a, dropped, "", whyNoneHere},
		{"client", "keeppod", b, dropped, "", whyNoneHere},
		{"client", "keepmixed", a, "host-a|pod-a1", "client", whyKept + ", or " + whyKeptHost},
		{"client", "keepmixed", "secondary node-a", "host-a|pod-a1", "client", whyKept + ", or " + whyKeptHost},
		{"client", "keeppod", "secondary node-a", "pod-a1", "client", whyKept},
		{"client", "keephost", "secondary node-a", "host-a", "client", whyKeptHost},
		{"host-b", "keeppod", a, "pod-a1", "host-b", whyKept},
		{"host-b", "keephost", a, "host-a", "host-b", whyKeptHost},
		{"host-a", "elsewhere", a, "pod-c1", join + "node-a", whyIgnored + whyDNAT},
		{"host-a", "keeppod", "ClusterIP", "pod-a1", join + "node-a", whyJoin},
		{"pod-a2", "elsewhere", a, "pod-c1", "pod-a2", whyIgnored + whyPod},
		// An external client to a cluster IP.
		{"client", "podremote", "ClusterIP", "pod-c1", join + "node-a", "the host forwards it to the gateway router"},
		{"client", "hostself", "ClusterIP", "host-a", masquerade, "the host forwards it to the gateway router"},
		{"client", "nobody", "ClusterIP", refused, "", whyNone},
		{"client", "podlocal", "other port", refused, "", "the Service has no such port"},
		{"client", "podlocal", "unallocated", dropped, "", "no Service has the address"},
		// Internal policy Local.
		{"pod-a2", "nearpod", "ClusterIP", "pod-a1|pod-a2", "pod-a2", whyPod},
		{"pod-b1", "nearpod", "ClusterIP", "pod-b1|pod-b2", "pod-b1", whyPod},
		{"host-a", "nearpod", "ClusterIP", "pod-a1|pod-a2", join + "node-a", whyJoin},
		{"host-a", "nearpod", a, "some pods", join + "node-a", "the internal policy does not count for NodePorts"},
		{"client", "nearpod", a, "some pods", join + "node-a", "the internal policy does not count for NodePorts"},
		{"pod-a2", "nearhost", "ClusterIP", "host-a", "pod-a2", whyMP0},
		{"host-a", "nearhost", "ClusterIP", "host-a", masquerade, whyMasq},
		{"host-b", "nearhost", "ClusterIP", "host-b", masquerade, whyMasq},
		{"pod-c1", "nearhost", "ClusterIP", dropped, "", whyNoneHere},
		{"host-c", "nearhost", "ClusterIP", dropped, "", whyNoneHere},
		// Addresses outside of the cluster's ranges.
		{"client", "outer", "external", "pod-a1", join + "node-a", whyJoin},
		{"client", "outer", "balancer", "pod-a1", join + "node-a", whyJoin},
		{"client", "outerlocal", "balancer", "pod-a1", "client", whyKept},
		{"client", "outerhost", "balancer", "host-a", "client", whyKeptHost},
		{"client", "barred", "balancer", dropped, "", "loadBalancerSourceRanges"},
		{"client", "barred", a, "pod-a1", join + "node-a",
			"source ranges are those of the load balancer's address only"},
		{"host-a", "outer", "external", "pod-a1", join + "node-a", whyDNAT},
		{"host-b", "outerlocal", "balancer", "pod-a1", join + "node-b",
			"a node may always reach load balancers' addresses"},
		{"host-a", "barred", "balancer", "pod-a1", join + "node-a",
			"a node may always reach load balancers' addresses"},
		{"pod-a2", "outer", "external", "pod-a1", "pod-a2", whyPod},
		{"pod-b1", "outerlocal", "balancer", dropped, "", "loadBalancerSourceRanges"},
		// The host's other addresses.
		{"host-a", "podremote", "localhost", "pod-c1", join + "node-a", whyOpen},
		{"host-a", "hostother", "localhost", "host-b", "host-a", whyOpen},
		{"host-a", "elsewhere", "localhost", "pod-c1", join + "node-a", whyOpen},
		{"pod-a2", "podlocal", "secondary node-a", "pod-a1", "pod-a2", whyPod},
		// No endpoint, or no listener.
		{"client", "nobody", a, refused, "", whyNone},
		{"host-a", "nobody", a, refused, "", whyNone},
		{"host-a", "nobody", "ClusterIP", refused, "", whyNone},
		{"pod-a2", "nobody", "ClusterIP", refused, "", whyNone},
		{"client", "deafpod", a, closed, "", whyDeaf},
		{"client", "deafpod", b, closed, "", whyDeaf},
		{"client", "deafhost", a, closed, "", whyDeaf},
		{"host-a", "deafpod", "ClusterIP", closed, "", whyDeaf},
		{"host-a", "deafhost", "ClusterIP", closed, "", whyDeaf},
		{"host-b", "deafpod", "ClusterIP", closed, "", whyDeaf},
		{"host-b", "deafhost", "ClusterIP", closed, "", whyDeaf},
		{"pod-a2", "deafpod", "ClusterIP", closed, "", whyDeaf},
		{"pod-a2", "deafhost", "ClusterIP", closed, "", whyDeaf},
		{"pod-b1", "deafpod", b, closed, "", whyDeaf},
		{"host-a", "podlocal", "other port", refused, "", "the Service has no such port"},
		{"pod-a2", "podlocal", "other port", refused, "", "the Service has no such port"},
		{"host-a", "podlocal", "unallocated", dropped, "", "no Service has the address"},
		{"pod-a2", "podlocal", "unallocated", dropped, "", "no Service has the address"},
	}
}
