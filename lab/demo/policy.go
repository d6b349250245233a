package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"hairpin/lab"
	"hairpin/lab/probe"
)

// isolated is the pod that the NetworkPolicies of the trials select.
const isolated = neighbour

// isolatedTarget is its label "target".
const isolatedTarget = "podlocal"

// policySet is a NetworkPolicy for each family, and the effect of both together.
type policySet struct {
	name string
	// spec returns the fields of a NetworkPolicy's spec beside podSelector. It may be nil.
	spec    func(f family) string
	cluster []string // fields of the specs of ClusterNetworkPolicies beside subject
	label   string   // of Namespace default, "key=value"; may be empty
	passes  []policyProbe
	drops   []policyProbe
}

// policyProbe is a client, its target, and the protocols: "" = all.
type policyProbe struct {
	way
	protocol string
}

func probes(protocol string, ways ...way) (list []policyProbe) {
	for _, x := range ways {
		list = append(list, policyProbe{x, protocol})
	}
	return list
}

// noPolicies is where NetworkPolicies are not enforced.
var noPolicies = Exception{withOVN, "NetworkPolicies are enforced by flows of `service-engine = openflow`"}

// policyTrials returns trials of NetworkPolicies.
func policyTrials() []Trial {
	var list []Trial
	for _, x := range append(ingressSets(), egressSets()...) {
		list = append(list, Trial{Name: "policy " + x.name, Not: []Exception{noPolicies},
			try: func(ctx context.Context, w *world) (string, error) { return w.policed(ctx, x) }})
	}
	for _, x := range clusterSets() {
		list = append(list, Trial{Name: "policy of the cluster, " + x.name, Not: []Exception{noPolicies, noDefinition},
			try: func(ctx context.Context, w *world) (string, error) { return w.policed(ctx, x) }})
	}
	return slices.Concat(list, revocationTrials(), collusionTrials(), packetTrials(), hostTrials())
}

// always returns a spec that is the same for both families.
func always(spec string) func(family) string { return func(family) string { return spec } }

// Ways to the isolated pod, and beside it.
var (
	fromNeighbour = way{attacker, isolated, "direct"}
	fromFar       = way{"pod-b1", isolated, "direct"}
	fromRemote    = way{"pod-c1", isolated, "direct"}
	byService     = way{attacker, "podlocal", "ClusterIP"}
	byFarService  = way{"pod-b1", "podlocal", "ClusterIP"}
	remoteService = way{"pod-c1", "podlocal", "ClusterIP"}
	fromOtherHost = way{"host-b", isolated, "direct"}
	otherHostVIP  = way{"host-b", "podlocal", "ClusterIP"}
	fromOwnHost   = way{"host-a", isolated, "direct"} // as the kubelet's probes
	ownHostVIP    = way{"host-a", "podlocal", "ClusterIP"}
	ownHostPort   = way{"host-a", "podlocal", "NodePort node-a"}
	clientHere    = way{clientName, "podlocal", "NodePort node-a"} // policy Cluster
	clientThere   = way{clientName, "podlocal", "NodePort node-b"}
	clientLocal   = way{clientName, "keeppod", "NodePort node-a"} // policy Local
	toItself      = way{isolated, "podlocal", "ClusterIP"}

	toNeighbour  = way{isolated, attacker, "direct"}
	toFar        = way{isolated, "pod-b1", "direct"}
	toFarService = way{isolated, "podremote", "ClusterIP"}
	toClient     = way{isolated, clientName, "direct"}
	toOtherHost  = way{isolated, "host-b", "direct"}
	toOtherVIP   = way{isolated, "hostother", "ClusterIP"}
	toOwnHost    = way{isolated, "host-a", "direct"}
	toOwnVIP     = way{isolated, "hostself", "ClusterIP"}
)

// others are ways that the policies of the trials do not concern.
var others = []way{{attacker, "pod-c1", "direct"}, {"pod-b1", "podremote", "ClusterIP"}, {"pod-c1", attacker, "direct"},
	{attacker, clientName, "direct"}, {clientName, "podremote", "NodePort node-a"}}

// toIsolated are all ways of others to the isolated pod that are not its node's.
func toIsolated() []way {
	return []way{fromNeighbour, fromFar, fromRemote, byService, byFarService, remoteService, fromOtherHost,
		otherHostVIP, clientHere, clientThere, clientLocal}
}

// ingressSets isolate the pod for ingress.
func ingressSets() []policySet {
	own := probes("", fromOwnHost, ownHostVIP, ownHostPort, toItself) // of the pod's node, and itself
	// Their replies come to the isolated pod.
	back := probes("", toNeighbour, toFar, toFarService, toClient, toOtherHost, toOtherVIP, toOwnHost)
	allow := func(rule string) func(family) string {
		return always("policyTypes: [Ingress], ingress: [" + rule + "]")
	}
	block := func(cidr func(f family) string) func(family) string {
		return func(f family) string {
			return "policyTypes: [Ingress], ingress: [{from: [{ipBlock: {" + cidr(f) + "}}]}]"
		}
	}
	return []policySet{
		{name: "deny ingress", spec: always("policyTypes: [Ingress]"),
			passes: slices.Concat(own, back), drops: probes("", toIsolated()...)},
		{name: "deny ingress and egress", spec: always("policyTypes: [Ingress, Egress]"),
			passes: slices.Concat(own, probes("", toOwnHost, toOwnVIP)),
			drops: probes("", append(toIsolated(), toNeighbour, toFar, toFarService, toClient, toOtherHost,
				toOtherVIP)...)},
		{name: "ingress from a pod label",
			spec:   allow("{from: [{podSelector: {matchLabels: {target: podremote}}}]}"),
			passes: slices.Concat(own, probes("", fromRemote, remoteService)),
			drops: probes("", fromNeighbour, fromFar, byService, byFarService, fromOtherHost, otherHostVIP, clientHere,
				clientThere, clientLocal)},
		{name: "ingress from a namespace label", label: "team=trial",
			spec:   allow("{from: [{namespaceSelector: {matchLabels: {team: trial}}}]}"),
			passes: slices.Concat(own, probes("", fromNeighbour, fromFar, byService, byFarService)),
			drops:  probes("", fromOtherHost, otherHostVIP, clientHere, clientThere, clientLocal)},
		{name: "ingress from another namespace label", label: "team=other",
			spec:   allow("{from: [{namespaceSelector: {matchLabels: {team: trial}}}]}"),
			passes: own, drops: probes("", toIsolated()...)},
		{name: "ingress from a block with exceptions",
			spec: block(func(f family) string {
				if f.name == "4" {
					return "cidr: 10.244.2.0/24, except: [10.244.2.4/32]"
				}
				return "cidr: 'fd00:10:244:2::/64', except: ['fd00:10:244:2::4/128']"
			}),
			passes: slices.Concat(own, probes("", fromFar, byFarService)),
			drops: probes("", way{"pod-b2", isolated, "direct"}, way{"pod-b2", "podlocal", "ClusterIP"}, fromNeighbour,
				fromRemote, clientHere)},
		{name: "ingress from the client's block",
			spec: block(func(f family) string {
				if f.name == "4" {
					return "cidr: 172.18.0.100/32"
				}
				return "cidr: 'fc00:f853:ccd::64/128'"
			}),
			passes: slices.Concat(own, probes("", clientLocal)),
			drops:  probes("", clientHere, clientThere, fromNeighbour, fromFar, fromOtherHost, otherHostVIP)},
		{name: "ingress from the join network",
			spec:   block(func(f family) string { return "cidr: '" + f.joins.String() + "'" }),
			passes: slices.Concat(own, probes("", clientHere, clientThere, otherHostVIP)),
			drops:  probes("", clientLocal, fromNeighbour, fromFar, byService, byFarService, fromOtherHost)},
		{name: "ingress to a named port of TCP", spec: allow("{ports: [{port: web}]}"),
			passes: slices.Concat(own, probes("tcp", fromNeighbour, fromFar, byFarService, clientHere, clientThere)),
			drops:  probes("udp", fromNeighbour, fromFar, byFarService, clientHere, clientThere)},
		{name: "ingress to a named port of UDP", spec: allow("{ports: [{port: query, protocol: UDP}]}"),
			passes: slices.Concat(own, probes("udp", fromNeighbour, fromFar, byFarService, clientHere, clientThere)),
			drops:  probes("tcp", fromNeighbour, fromFar, byFarService, clientHere, clientThere)},
		{name: "ingress to a range of ports",
			spec:   allow("{ports: [{port: 8079, endPort: 8080}, {port: 8081, endPort: 65535, protocol: UDP}]}"),
			passes: slices.Concat(own, probes("tcp", fromNeighbour, fromFar, byFarService, clientHere, clientThere)),
			drops:  probes("udp", fromNeighbour, fromFar, byFarService, clientHere, clientThere)},
		{name: "ingress to the pod's port", spec: allow("{ports: [{port: 8080}]}"),
			passes: slices.Concat(own, probes("tcp", toIsolated()...)), drops: probes("udp", toIsolated()...)},
		{name: "ingress to the Service's port", spec: allow("{ports: [{port: 80}, {port: 80, protocol: UDP}]}"),
			passes: own, drops: probes("", toIsolated()...)},
	}
}

// egressSets isolate the pod for egress.
func egressSets() []policySet {
	own := probes("", toOwnHost, toOwnVIP, toItself)
	in := probes("", toIsolated()...) // replies
	allow := func(rule string) func(family) string {
		return always("policyTypes: [Egress], egress: [" + rule + "]")
	}
	return []policySet{
		{name: "deny egress", spec: always("policyTypes: [Egress]"), passes: slices.Concat(own, in),
			drops: probes("", toNeighbour, toFar, toFarService, toClient, toOtherHost, toOtherVIP)},
		{name: "egress to a port of UDP", spec: allow("{ports: [{port: 8080, protocol: UDP}]}"),
			passes: slices.Concat(own, probes("udp", toNeighbour, toFar, toFarService)),
			drops:  append(probes("tcp", toNeighbour, toFar, toFarService), probes("", toClient, toOtherHost)...)},
		{name: "egress to a pod label", spec: allow("{to: [{podSelector: {matchLabels: {target: podremote}}}]}"),
			passes: slices.Concat(own, probes("", toFarService, way{isolated, "pod-c1", "direct"})),
			drops:  probes("", toNeighbour, toFar, toClient, toOtherHost)},
		{name: "egress to the client's block",
			spec: func(f family) string {
				cidr := "172.18.0.100/32"
				if f.name == "6" {
					cidr = "fc00:f853:ccd::64/128"
				}
				return "policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: '" + cidr + "'}}]}]"
			},
			passes: slices.Concat(own, probes("", toClient)),
			drops:  probes("", toNeighbour, toFar, toFarService, toOtherHost, toOtherVIP)},
	}
}

// netpol returns the manifest of a NetworkPolicy that selects pods with a label target.
func netpol(name, target, spec string) string {
	return fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s, namespace: "+
		"default}, spec: {podSelector: {matchLabels: {target: %s}}, %s}}", name, target, spec)
}

// putPolicies creates the NetworkPolicies of a set, and its label of the Namespace.
func (w *world) putPolicies(ctx context.Context, x policySet) (remove func() error, err error) {
	manifests := []string{podsNamespace}
	for _, f := range families() {
		if x.spec != nil {
			manifests = append(manifests, netpol("trial-"+f.name, isolatedTarget, x.spec(f)))
		}
	}
	for i, spec := range x.cluster {
		manifests = append(manifests, clusterPolicy(fmt.Sprintf("trial-%d", i), isolatedTarget, spec))
	}
	undo, err := w.putAll(ctx, manifests...)
	key, value, ok := strings.Cut(x.label, "=")
	if err != nil || !ok {
		return undo, err
	}
	label := func(value any) error {
		return w.objects.set(context.WithoutCancel(ctx), "Namespace", "default", labelsField, key, value)
	}
	remove = func() error { return errors.Join(label(nil), undo()) }
	if err := label(value); err != nil {
		return nil, errors.Join(err, remove())
	}
	return remove, nil
}

// policed creates the policies of a set and waits until they are in force. After their removal all
// must pass.
func (w *world) policed(ctx context.Context, x policySet) (note string, err error) {
	remove, err := w.putPolicies(ctx, x)
	if err != nil {
		return "", err
	}
	passes := slices.Concat(probes("", others...), x.passes)
	begin := time.Now()
	err = w.until(ctx, "the policies are in force",
		func() error { return w.probeAll(ctx, passes, x.drops, w.patience()) })
	note = fmt.Sprintf("in force after %d ms", time.Since(begin).Milliseconds())
	if err == nil {
		err = w.probeAll(ctx, passes, x.drops, w.longer(3*time.Second)) // it stays so
	}
	if err = errors.Join(err, remove()); err != nil {
		return "", err
	}
	return note, w.until(ctx, "without the policies", func() error {
		return w.probeAll(ctx, append(passes, x.drops...), nil, w.patience())
	})
}

// probeAll tries all at the same time, over both families. It returns what does not end as it must.
// What passes is answered within limit.
func (w *world) probeAll(ctx context.Context, passes, drops []policyProbe, limit time.Duration) error {
	var tries []func() error
	for i, p := range append(slices.Clone(passes), drops...) {
		for _, protocol := range []string{"tcp", "udp", "sctp"} {
			served := protocol != "sctp" || w.sctp && w.services[p.to].sctp
			if p.protocol != "" && p.protocol != protocol || !served {
				continue
			}
			for _, f := range families() {
				tries = append(tries, func() error {
					to, err := w.wayTo(p.way, f)
					if err == nil {
						err = w.probeOne(ctx, p.from, protocol, to, i < len(passes), limit)
					}
					if err != nil {
						err = fmt.Errorf("%s: %w", p.name("from", protocol+f.name), err)
					}
					return err
				})
			}
		}
	}
	return lab.Together(tries...)
}

// probeOne sends a request. It must be answered within limit, or it must be dropped.
func (w *world) probeOne(ctx context.Context, from, protocol string, to netip.AddrPort, passes bool,
	limit time.Duration) error {
	r := probe.Request{Protocol: protocol, To: to, Timeout: w.patience()}
	if passes {
		r.Timeout = limit
	}
	a := lab.Get(ctx, w.endpoints[from].place, r)
	switch {
	case passes && a.Error != "":
		return errors.New(a.Error)
	case !passes && a.Error == "":
		return fmt.Errorf("%s answered", a.Name)
	case !passes && !strings.Contains(a.Error, "timeout") && !strings.Contains(a.Error, "deadline"):
		return fmt.Errorf("not dropped: %s", a.Error)
	}
	return nil
}
