package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"hairpin/report"
)

// reportTime is how long `hairpin status` may take to name a node with a fault: an agent probes a
// daemon each second, and reports it as hung after up to 4.6 s.
const reportTime = 7 * time.Second

// checkReported checks that `hairpin status` names the node of a fault while the fault lasts. It
// omits faults that end earlier, and those during which status may not reach the API server.
func (r *run) checkReported(ctx context.Context, i int) {
	w := r.window(i)
	var status string
	for sleep(ctx, w.Began+reportTime-r.since()); r.since() < w.End-reportTime/2; sleep(ctx, reportTime/5) {
		out, err := r.hairpin(ctx, "status", "--brief")
		if err != nil && strings.Contains(out, w.Node) || r.apiMayBeUnreachable(span{w.Began, r.since()}) {
			return
		}
		status = out
	}
	if status != "" {
		r.addViolation(Violation{What: "status does not say what is wrong", From: w.Began, To: r.since(), Count: 1,
			First: w.Kind + " on " + w.Node + ": " + status})
	}
}

// apiMayBeUnreachable reports whether a fault may separate the administrator from the API server.
func (r *run) apiMayBeUnreachable(s span) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.windows[:r.started()], func(w Window) bool {
		k := kinds[w.Kind]
		return (w.Node == "" || w.Node == r.nodes[0] && k.noAPI) &&
			s.overlaps(w.span())
	})
}

// watchStatus runs `hairpin status` until ctx ends. It must report no problem of an object, as all
// objects of a run are valid, and no node without a fault in the last syncTime. Nodes may have
// problems: they join, and their networks change.
func (r *run) watchStatus(ctx context.Context) {
	for ; ctx.Err() == nil; sleep(ctx, reportTime) {
		begin := r.since()
		var status struct {
			Nodes []struct {
				Node, Error string
				Report      *report.Report // nil: the agent does not answer
			}
		}
		// It fails if something is wrong.
		out, _ := r.runHairpin(ctx, (*exec.Cmd).Output, []string{"status", "--brief", "--output", "json"})
		if json.Unmarshal(out, &status) != nil {
			continue // the API server may not answer
		}
		when := span{begin - syncTime, r.since()}
		for _, n := range status.Nodes {
			if n.Report != nil {
				r.checkProblems(when, n.Report.Problems)
			}
			if n.Report != nil && n.Report.Healthy() || !slices.Contains(r.nodes, n.Node) { // healthy, or simulated
				continue
			}
			what, _ := json.Marshal(n)
			r.unhealthy = append(r.unhealthy, fmt.Sprintf("%.1f s  %s\n", begin.Seconds(), what))
			if !r.anyFault(n.Node, when) {
				r.addViolation(Violation{What: "status reports a node without a fault", From: begin, To: when.to, Count: 1,
					First: string(what)})
			}
		}
	}
}

// checkProblems checks that no problem is one of an object other than a Node.
func (r *run) checkProblems(when span, problems []string) {
	for _, p := range problems {
		if !strings.HasPrefix(p, "Node/") {
			r.addViolation(Violation{What: "status reports a problem of a valid object", From: when.to, To: when.to,
				Count: 1, First: p})
		}
	}
}

// anyFault reports whether a fault that affects a node overlaps s.
func (r *run) anyFault(node string, s span) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.windows, func(w Window) bool {
		return w.Began != 0 && (w.Node == "" || w.Node == node || w.Peer == node) &&
			s.overlaps(w.span())
	})
}
