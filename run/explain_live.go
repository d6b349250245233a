package run

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/walk"
	"hairpin/walk/explain"
)

// explainLive walks the packet twice, through what the nodes must have and through what was read back from this node,
// and names the first difference on its way.
func explainLive(ctx context.Context, w, errw io.Writer, o ExplainOptions, c Config) error {
	own, err := agentSnapshot(ctx, c)
	if err != nil {
		return err
	}
	s, err := explainedSnapshot(ctx, o.Dir, c)
	if err != nil {
		return err
	}
	report, err := agentReport(ctx, c)
	if err != nil {
		return err
	}
	s = withOwn(s, own, report.Node)
	wanted := planned(errw, s)
	text, err := get(ctx, c, "/found")
	if err != nil {
		return err
	}
	found, err := datapath.Parse(string(text))
	if err != nil {
		return fmt.Errorf("what the agent of %s read back: %w", report.Node, err)
	}
	real := walk.World{Snapshot: s, States: map[string]datapath.State{}}
	for name, state := range wanted.States {
		if name != report.Node {
			fmt.Fprintf(errw, "%s is not read back: what it must have stands for what it has\n", name)
			real.States[name] = state
		}
	}
	real.States[report.Node] = adopted(wanted.States[report.Node], found)
	must, err := explain.Ask(walk.New(wanted), s, o.Question)
	if err != nil {
		return err
	}
	has, err := explain.Ask(walk.New(real), s, o.Question)
	if err != nil {
		return err
	}
	fault := explain.FindFault(must, has)
	if fault != nil && fault.Node == report.Node {
		fault.Repair = repairState(report, fault.Stage)
	}
	return tell(w, has, fault, o)
}

func agentReport(ctx context.Context, c Config) (r Report, err error) {
	body, err := get(ctx, c, "/report")
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return r, fmt.Errorf("answer of the agent: %w", err)
	}
	return r, nil
}

// adopted puts wanted values in place of found ones that are the same but for what a system cannot keep, such as the
// object that wanted a flow.
func adopted(want, found datapath.State) datapath.State {
	if nb.Diff(want.NB, found.NB).Empty() {
		found.NB = want.NB
	}
	if nft.Diff(want.NFT, found.NFT).Empty() {
		found.NFT = want.NFT
	}
	if host.Diff(want.Host, found.Host).Empty() {
		found.Host = want.Host
	}
	if flow.Diff(want.Bridge, found.Bridge).Empty() {
		found.Bridge = want.Bridge
		return found
	}
	flows := make(map[flow.Key]*flow.Flow, len(found.Bridge.Flows))
	for k, f := range found.Bridge.Flows {
		if w := want.Bridge.Flows[k]; w != nil && w.String() == f.String() {
			f = w
		}
		flows[k] = f
	}
	found.Bridge.Flows = flows
	return found
}

// repairState tells what the agent says about the part of the node that a stage belongs to.
func repairState(r Report, stage string) string {
	part := map[explain.Kind]string{explain.Bridge: "openvswitch", explain.Switch: "ovn", explain.Router: "ovn", explain.Host: "host"}[explain.PlaceOf(stage).Kind]
	if strings.HasPrefix(stage, "nft ") {
		part = "nft"
	}
	for _, p := range r.Parts {
		switch {
		case p.System != part:
		case p.Error != "":
			return fmt.Sprintf("%s: the repair fails: %s", part, firstLine(p.Error))
		case !p.InSync:
			return fmt.Sprintf("%s: not repaired yet (%d differences repaired before)", part, p.Drift)
		default:
			return fmt.Sprintf("%s: in sync again since %s (%d differences repaired)", part, p.Since.Format("15:04:05"), p.Drift)
		}
	}
	return ""
}
