package demo

import "slices"

// Case is one path to a server: the client, the target, the path, and the source that the server
// must see. Each is tried over TCP and UDP, IPv4 and IPv6.
type Case struct {
	From string // "host-a" (the host of node-a), "pod-a2", "client"
	To   string // a Service, or a Pod or host for a direct path
	Path string // "ClusterIP", "NodePort node-b", "direct" …; see world.target
	// By names the server that must reply. For Services with several pods it is "one pod" (always
	// the same) or "some pods" (not always).
	By  string
	Saw string // source address that the server must see; see sources
	Why string // the rule behind Saw, shown in the documentation
}

// Words of Case.Saw. Any other word is a place, and means that place's own address.
const (
	masquerade = "masquerade" // 169.254.169.1, fd69::1: the gateway router, as its host sees it
	hairpin    = "hairpin"    // 169.254.169.5, fd69::5: a pod that connects to itself
	join       = "join "      // followed by a node: its gateway router on the join switch
	management = "mp0 "       // followed by a node: its host in the pod network
	beyondDGP  = "gw0"        // 169.254.0.3, fd6b::3: the host, as seen beyond the distributed gateway port
)

// Reasons of Case.Why.
const (
	whyJoin   = "the gateway router load-balances and is the source, on the join switch"
	whyNode   = "the gateway router load-balances and sends it out again, from the node address"
	whyMasq   = "the gateway router sends it back to its own host, SNATed to the masquerade address"
	whyPod    = "the node's switch load-balances; nobody changes the source"
	whyMP0    = "the cluster router sends it to its own host through ovn-k8s-mp0; nobody changes the source"
	whyEgress = "a pod leaves the cluster from the node address"
	whyDNAT   = "nft on the host replaces the own NodePort by the ClusterIP"
)

// Cases returns the traffic matrix: every client of docs/design/origins.md#use-cases, to every kind
// of endpoint, by every path. Only its own node has the secondary address, so the address is tried
// through that node only.
func Cases() []Case {
	const a, b = "NodePort node-a", "NodePort node-b"
	return append([]Case{
		// Clients on a host.
		{"host-a", "podlocal", "ClusterIP", "pod-a1", join + "node-a", whyJoin},
		{"host-a", "podremote", "ClusterIP", "pod-c1", join + "node-a", whyJoin},
		{"host-a", "hostself", "ClusterIP", "host-a", masquerade, whyMasq},
		{"host-a", "hostother", "ClusterIP", "host-b", "host-a", whyNode},
		{"host-a", "hostsecondary", "ClusterIP", "host-a", masquerade, whyMasq},
		{"host-a", "web", "ClusterIP", "some pods", join + "node-a", whyJoin},
		{"host-a", "sticky", "ClusterIP", "one pod", join + "node-a", whyJoin},
		{"host-b", "podlocal", "ClusterIP", "pod-a1", join + "node-b", whyJoin},
		{"host-b", "hostself", "ClusterIP", "host-a", "host-b", whyNode},
		{"host-b", "hostother", "ClusterIP", "host-b", masquerade, whyMasq},
		{"host-a", "podremote", a, "pod-c1", join + "node-a", whyDNAT},
		{"host-a", "hostother", a, "host-b", "host-a", whyDNAT},
		{"host-a", "hostsecondary", a, "host-a", masquerade, whyDNAT},
		{"host-a", "podlocal", b, "pod-a1", join + "node-b", whyJoin},
		{"host-a", "podremote", b, "pod-c1", join + "node-b", whyJoin},
		{"host-a", "hostself", b, "host-a", "host-b", whyNode},
		{"host-a", "hostother", b, "host-b", masquerade, whyMasq},
		// Clients in a pod.
		{"pod-a2", "podlocal", "ClusterIP", "pod-a1", "pod-a2", whyPod},
		{"pod-a2", "podremote", "ClusterIP", "pod-c1", "pod-a2", whyPod},
		{"pod-a2", "hostself", "ClusterIP", "host-a", "pod-a2", whyMP0},
		{"pod-a2", "hostother", "ClusterIP", "host-b", "host-a", whyEgress},
		{"pod-a2", "hostsecondary", "ClusterIP", "host-a", "pod-a2", whyMP0},
		{"pod-a2", "web", "ClusterIP", "some pods", "pod-a2", whyPod},
		{"pod-a2", "sticky", "ClusterIP", "one pod", "pod-a2", whyPod},
		{"pod-a1", "podlocal", "ClusterIP", "pod-a1", hairpin, "the pod is its own endpoint"},
		{"pod-a2", "podremote", a, "pod-c1", "pod-a2", whyPod},
		{"pod-a2", "hostother", a, "host-b", "host-a", whyEgress},
		{"pod-a2", "hostsecondary", a, "host-a", "pod-a2", whyMP0},
		{"pod-a2", "podlocal", b, "pod-a1", join + "node-b", whyJoin},
		{"pod-a2", "podremote", b, "pod-c1", join + "node-b", whyJoin},
		{"pod-a2", "hostself", b, "host-a", "host-b", whyNode},
		{"pod-a2", "hostother", b, "host-b", masquerade, whyMasq},
		// External clients.
		{"client", "podremote", a, "pod-c1", join + "node-a", whyJoin},
		{"client", "hostother", a, "host-b", "host-a", whyNode},
		{"client", "hostsecondary", a, "host-a", masquerade, whyMasq},
		{"client", "web", a, "some pods", join + "node-a", whyJoin},
		{"client", "sticky", a, "one pod", join + "node-a", whyJoin},
		{"client", "podlocal", b, "pod-a1", join + "node-b", whyJoin},
		{"client", "podremote", b, "pod-c1", join + "node-b", whyJoin},
		{"client", "hostself", b, "host-a", "host-b", whyNode},
		{"client", "hostother", b, "host-b", masquerade, whyMasq},
		// Direct paths, without a Service.
		{"host-a", "pod-a1", "direct", "pod-a1", management + "node-a", "the host reaches pods through ovn-k8s-mp0"},
		{"host-a", "pod-c1", "direct", "pod-c1", management + "node-a", "the host reaches pods through ovn-k8s-mp0"},
		{"host-a", "host-b", "direct", "host-b", "host-a", "the wire"},
		{"pod-a2", "pod-a1", "direct", "pod-a1", "pod-a2", "the pod network"},
		{"pod-a2", "pod-c1", "direct", "pod-c1", "pod-a2", "the pod network, through Geneve"},
		{"pod-a2", "host-a", "direct", "host-a", "pod-a2", whyMP0},
		{"pod-a2", "host-b", "direct", "host-b", "host-a", whyEgress},
		{"pod-a2", "client", "direct", "client", "host-a", whyEgress},
		{"client", "host-a", "direct", "host-a", "client", "the wire"},
	}, slices.Concat(nodePortCases(), policyCases(), innerCases())...)
}
