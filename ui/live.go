package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"hairpin/cluster"
	"hairpin/config"
	"hairpin/datapath"
	"hairpin/inspect"
	"hairpin/report"
	"hairpin/walk"
	"hairpin/walk/explain"
	"hairpin/walk/explain/question"
)

// explainLive explains a walk through the real state, and the first difference from the desired
// state.
func explainLive(ctx context.Context, w, errw io.Writer, o ExplainOptions, c config.Config) error {
	actual, fault, err := walkLive(ctx, errw, o, c)
	if err != nil {
		return err
	}
	return printExplanation(w, actual, fault, o)
}

// walkLive walks the packet through the desired state of the nodes, and through the state read back
// from the nodes on its path. It returns the first difference. Failed requests are reported on
// errw.
func walkLive(ctx context.Context, errw io.Writer, o ExplainOptions,
	c config.Config) (*explain.Explanation, *explain.Fault, error) {
	ask, s, err := liveSource(ctx, o, c)
	if err != nil {
		return nil, nil, err
	}
	desired, err := explainIn(io.Discard, s, o.Question)
	if err != nil {
		return nil, nil, err
	}
	facts := readBack(ctx, errw, ask, o.nodesToRead(desired))
	for node, f := range facts {
		s = withOwn(s, f.snapshot, node)
	}
	desiredWorld := planned(errw, s)
	actualWorld := desiredWorld
	actualWorld.States = map[string]datapath.State{}
	for node, f := range facts {
		state, _ := desiredWorld.Lookup(node)
		actualWorld.States[node] = datapath.Adopted(state, f.found)
	}
	if desired, err = explain.Ask(walk.New(desiredWorld), s, o.Question); err != nil {
		return nil, nil, err
	}
	actual, err := explain.Ask(walk.New(actualWorld), s, o.Question)
	if err != nil {
		return nil, nil, err
	}
	for _, node := range nodesOnPath(actual) {
		if facts[node] == nil {
			fmt.Fprintf(errw, "%s was not read back: its desired state is used in place of the real one\n", node)
		}
	}
	fault := explain.FindFault(desired, actual)
	if o.Send {
		w := walk.New(actualWorld)
		p := &prover{ask: ask, errw: errw, o: o, s: s, facts: facts,
			walk: func(q question.Question) (*explain.Explanation, error) { return explain.Ask(w, s, q) }}
		if actual, err = p.prove(ctx, actual); err != nil {
			return nil, nil, err
		}
	}
	if fault != nil {
		actual.AddFault(fault, desired)
		if f := facts[fault.Node]; f != nil {
			fault.Repair = repairState(f.report, fault.Stage)
		}
	}
	return actual, fault, nil
}

// asker sends a request to the agent of a node.
type asker func(ctx context.Context, node, path string) ([]byte, error)

// liveSource returns the cluster, and an asker for its agents. With a kubeconfig, it reaches all of
// them through the API server; otherwise only the agent of this node.
func liveSource(ctx context.Context, o ExplainOptions, c config.Config) (asker, *cluster.Snapshot, error) {
	if o.EveryNode {
		a, err := inspect.Connect(o.cluster(c))
		if err != nil {
			return nil, nil, err
		}
		s, err := readCluster(ctx, a.Client, c)
		return a.FromNode, s, err
	}
	own, err := agentSnapshot(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	r, err := inspect.AgentReport(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	s := own
	if o.Dir != "" || c.Process.Manifests != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		if s, err = explainedSnapshot(ctx, o, c); err != nil {
			return nil, nil, err
		}
		s = withOwn(s, own, r.Node)
	}
	return func(ctx context.Context, node, path string) ([]byte, error) {
		if node != r.Node {
			return nil, errElsewhere
		}
		return inspect.FromAgent(ctx, c, path)
	}, s, nil
}

// errElsewhere is the error for nodes that this node cannot reach.
var errElsewhere = errors.New("only --all and --kubeconfig read other nodes back")

// nodesOnPath returns the nodes on the path of a packet and its reply.
func nodesOnPath(e *explain.Explanation) []string {
	nodes := []string{e.Trace.From.Node, e.Trace.Verdict.At.Node}
	for _, s := range slices.Concat(e.Trace.Forward, e.Trace.Reply) {
		nodes = append(nodes, s.Node)
	}
	slices.Sort(nodes)
	return slices.DeleteFunc(slices.Compact(nodes), func(n string) bool { return n == "" })
}

// nodesToRead returns the nodes to read back: those on the path, and with Send those of all
// endpoints.
func (o *ExplainOptions) nodesToRead(e *explain.Explanation) []string {
	nodes := nodesOnPath(e)
	for _, x := range e.Endpoints {
		if o.Send && x.Node != "" && !slices.Contains(nodes, x.Node) {
			nodes = append(nodes, x.Node)
		}
	}
	return nodes
}

// nodeFacts is the state that a node's agent read back, and its own report.
type nodeFacts struct {
	snapshot *cluster.Snapshot
	found    datapath.State
	report   report.Report
}

// readBack sends requests to the agents of nodes, all at once. It reports failures on errw and
// omits these nodes from the result.
func readBack(ctx context.Context, errw io.Writer, ask asker, nodes []string) map[string]*nodeFacts {
	facts := make([]*nodeFacts, len(nodes))
	errs := make([]error, len(nodes))
	var g errgroup.Group
	for i, node := range nodes {
		g.Go(func() error {
			facts[i], errs[i] = readNode(ctx, ask, node)
			return nil
		})
	}
	_ = g.Wait() // errs has the errors
	out := map[string]*nodeFacts{}
	for i, node := range nodes {
		if errs[i] != nil {
			fmt.Fprintf(errw, "%s: %v\n", node, errs[i])
			continue
		}
		out[node] = facts[i]
	}
	return out
}

func readNode(ctx context.Context, ask asker, node string) (*nodeFacts, error) {
	f := &nodeFacts{}
	for _, x := range []struct {
		path string
		read func([]byte) error
	}{
		{"/report", func(b []byte) error { return json.Unmarshal(b, &f.report) }},
		{"/snapshot", func(b []byte) (err error) { f.snapshot, err = cluster.ReadSnapshot(b); return err }},
		{"/found" + report.AsJSON, func(b []byte) error { return datapath.Decode(b, &f.found) }},
	} {
		body, err := ask(ctx, node, x.path)
		if err != nil {
			return nil, err
		}
		if err := x.read(body); err != nil {
			return nil, fmt.Errorf("%s of the agent, which is hairpin %s and this one %s: %w", x.path,
				report.Plain(f.report.Version, ""), report.Version(), err)
		}
	}
	return f, nil
}

// repairState describes the agent's repair of the part of the node that a stage belongs to.
func repairState(r report.Report, stage string) string {
	part := map[explain.Kind]string{explain.Bridge: "openvswitch", explain.Switch: "ovn", explain.Router: "ovn",
		explain.Host: "host"}[explain.PlaceOf(stage).Kind]
	if strings.HasPrefix(stage, "nft ") {
		part = "nft"
	}
	for _, p := range r.Parts {
		switch {
		case p.System != part:
		case r.NoRepair:
			return part + ": not repaired, because [default] repair is off"
		case p.Error != "":
			return fmt.Sprintf("%s: the repair fails: %s", part, inspect.FirstLine(p.Error))
		case !p.InSync:
			return fmt.Sprintf("%s: not repaired yet (%d differences repaired before)", part, p.Drift)
		default:
			return fmt.Sprintf("%s: in sync again since %s (%d differences repaired)", part, p.Since.Format("15:04:05"),
				p.Drift)
		}
	}
	return ""
}
