package ui

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/cluster/store"
	"hairpin/config"
	"hairpin/inspect"
	"hairpin/kube"
	"hairpin/kubeapi"
	"hairpin/watch"
)

// explainedSnapshot returns the cluster from a folder, from the API, or from the agent of this
// node.
func explainedSnapshot(ctx context.Context, o ExplainOptions, c config.Config) (*cluster.Snapshot, error) {
	s, err := readExplained(ctx, o, c)
	if err == nil {
		err = checkFlags(o.Flags, s)
	}
	return s, err
}

// Cluster returns the cluster of Explain, for the completion of a command line.
func Cluster(ctx context.Context, o ExplainOptions, c config.Config) (*cluster.Snapshot, error) {
	return explainedSnapshot(ctx, o, c)
}

// reported has the flags of options that every Node reports in its annotation, and what it reports.
// It is read-only.
var reported = []struct {
	flag string
	of   func(cluster.Gateway) string
}{
	{"gateway-mode", func(g cluster.Gateway) string { return g.Mode }},
	{"service-engine", func(g cluster.Gateway) string {
		return either(g.OpenFlow, cluster.EngineOpenFlow, cluster.EngineOVN)
	}},
	{"gateway-nodeport-path", func(g cluster.Gateway) string {
		return either(g.Redirect, cluster.PathRedirect, cluster.PathNFT)
	}},
	{"gateway-node-local",
		func(g cluster.Gateway) string { return either(g.NodeLocal, cluster.LocalDGP, cluster.LocalPolicy) }},
}

func either(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}

// ReportedFlags returns the flags of options that every Node reports. They affect only nodes that
// do not report them yet.
func ReportedFlags() (list []string) {
	for _, r := range reported {
		list = append(list, r.flag)
	}
	return list
}

// checkFlags returns an error for a flag without effect: every Node reports its option.
func checkFlags(flags []string, s *cluster.Snapshot) error {
	if len(s.Nodes) == 0 || slices.ContainsFunc(s.Nodes, func(n *cluster.Node) bool { return n.Gateway.Mode == "" }) {
		return nil
	}
	for _, r := range reported {
		if slices.Contains(flags, r.flag) {
			n := s.Nodes[0]
			return fmt.Errorf("--%s changes nothing: the annotation %s of Node %s has %s, and those of all other nodes "+
				"have their own", r.flag, annotation.Gateway, n.Name, r.of(n.Gateway))
		}
	}
	return nil
}

// rejectFlags returns an error for any flag: agents report the configuration of their cluster.
func (o *ExplainOptions) rejectFlags() error {
	if len(o.Flags) == 0 {
		return nil
	}
	return fmt.Errorf("--%s changes nothing: the configuration is that of the nodes' agents", o.Flags[0])
}

func readExplained(ctx context.Context, o ExplainOptions, c config.Config) (*cluster.Snapshot, error) {
	switch {
	case o.Dir != "":
		return readFolder("-f", o.Dir, c)
	case o.EveryNode:
		a, err := inspect.Connect(o.cluster(c))
		if err != nil {
			return nil, err
		}
		return readCluster(ctx, a.Client, c)
	case c.Process.Manifests != "":
		return watch.ReadFiles(c.Process.Manifests, c.Cluster)
	case c.Process.Kubeconfig != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != "":
		return readAPI(ctx, c)
	}
	if err := o.rejectFlags(); err != nil {
		return nil, err
	}
	s, err := agentSnapshot(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("%w; -f DIR reads manifests instead, --all the Kubernetes API", err)
	}
	return s, nil
}

// readFolder reads manifests. A folder without a Node is an error, because it is the wrong one.
func readFolder(flag, dir string, c config.Config) (*cluster.Snapshot, error) {
	s, err := watch.ReadFiles(dir, c.Cluster)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", flag, err)
	case len(s.Nodes) > 0:
		return s, nil
	case len(s.Problems) > 0:
		return nil, fmt.Errorf("%s %s: has no valid Node in its *.yaml, *.yml and *.json: %w", flag, dir, s.Problems[0])
	}
	return nil, fmt.Errorf("%s %s: has no Node in its *.yaml, *.yml and *.json", flag, dir)
}

// readAPI reads the cluster once, all pods included.
func readAPI(ctx context.Context, c config.Config) (*cluster.Snapshot, error) {
	client, err := kube.Connect(c.Process.Kubeconfig, &kube.Reach{})
	if err != nil {
		return nil, err
	}
	return readCluster(ctx, client, c)
}

func readCluster(ctx context.Context, client *kubeapi.Client, c config.Config) (*cluster.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	facts := store.New(c.Cluster)
	all := metav1.ListOptions{ResourceVersion: "0"} // what the API server has in memory
	for _, list := range []func() (runtime.Object, error){
		func() (runtime.Object, error) { return client.Nodes().List(ctx, all) },
		func() (runtime.Object, error) { return client.Namespaces().List(ctx, all) },
		func() (runtime.Object, error) { return client.Pods("").List(ctx, all) },
		func() (runtime.Object, error) { return client.Services("").List(ctx, all) },
		func() (runtime.Object, error) { return client.EndpointSlices("").List(ctx, all) },
		func() (runtime.Object, error) { return client.ServiceCIDRs().List(ctx, all) },
		func() (runtime.Object, error) { return client.NetworkPolicies("").List(ctx, all) },
		func() (runtime.Object, error) {
			return watch.ListClusterNetworkPolicies(ctx, client.Core, metav1.ListOptions{})
		},
		func() (runtime.Object, error) {
			return watch.ListEgressIPs(ctx, client.Core, metav1.ListOptions{})
		},
		func() (runtime.Object, error) {
			return watch.ListEgressServices(ctx, client.Core, metav1.ListOptions{})
		},
	} {
		objects, err := list()
		if apierrors.IsNotFound(err) {
			continue // the server has no such resource: ServiceCIDRs before Kubernetes 1.33, Hairpin's before the chart
		}
		if err == nil {
			err = meta.EachListItem(objects, func(o runtime.Object) error { facts.Set(o); return nil })
		}
		if err != nil {
			return nil, fmt.Errorf("read the cluster from the API: %w", err)
		}
	}
	return facts.Snapshot(), nil
}

// agentSnapshot returns the cluster from the agent of this node, with the agent's own data for its
// pods and gateway. If the agent reads the API, pods of other nodes are missing.
func agentSnapshot(ctx context.Context, c config.Config) (*cluster.Snapshot, error) {
	body, err := inspect.FromAgent(ctx, c, "/snapshot")
	if err != nil {
		return nil, err
	}
	s, err := cluster.ReadSnapshot(body)
	if err != nil {
		return nil, fmt.Errorf("answer of the agent: %w", err)
	}
	return s, nil
}

// withOwn replaces data of the cluster with more accurate data of a node's agent: its Node, its
// pods, and the egress addresses that move from or to it.
func withOwn(s, agent *cluster.Snapshot, node string) *cluster.Snapshot {
	out := *s
	out.Config = agent.Config
	out.Nodes = slices.Clone(s.Nodes)
	for i, n := range out.Nodes {
		if own := agent.Node(node); n.Name == node && own != nil {
			out.Nodes[i] = own
		}
	}
	out.Pods = slices.DeleteFunc(slices.Clone(s.Pods), func(p *cluster.Pod) bool { return p.Node == node })
	for _, p := range agent.Pods {
		if p.Node == node {
			out.Pods = append(out.Pods, p)
		}
	}
	out.EgressIPs = slices.Clone(s.EgressIPs)
	for i, e := range out.EgressIPs {
		for _, own := range agent.EgressIPs {
			if own.Owner == e.Owner && slices.ContainsFunc(own.Moving,
				func(m cluster.Move) bool { return m.From == node || m.To == node }) {
				out.EgressIPs[i] = own
			}
		}
	}
	slices.SortFunc(out.Pods, (*cluster.Pod).Compare)
	return &out
}
