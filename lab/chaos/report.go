package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Save writes a schedule to a file.
func (s *Schedule) Save(file string) error { return writeJSON(file, s) }

// Load reads a schedule from a file that Save wrote.
func Load(file string) (*Schedule, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s := &Schedule{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("read schedule %s: %w", file, err)
	}
	if len(s.Nodes) == 0 {
		return nil, fmt.Errorf("schedule %s has no nodes", file)
	}
	for _, f := range s.Faults {
		if kinds[f.Kind] == nil {
			return nil, fmt.Errorf("schedule %s: no kind of fault is %q", file, f.Kind)
		}
	}
	return s, nil
}

// explanation is what `hairpin explain` found right after a failure.
type explanation struct {
	path string
	at   time.Duration
	text string
}

// maxExplained is how many failures are explained.
const maxExplained = 5

// explainInBackground explains a connection if it violates an invariant. The caller holds the lock.
func (r *run) explainInBackground(c *connection, result *Result) {
	during := span{result.At, result.At + result.Took}
	switch what := violated(&c.Path, result); {
	case what == "" || len(r.explains) >= maxExplained:
		return
	case what == failed && slices.ContainsFunc(excuses(&c.Path, r.windows[:r.started()], r.stalls), during.overlaps):
		return
	case slices.ContainsFunc(r.explains, func(e explanation) bool { return e.path == c.Name }):
		return
	}
	r.progress("%s: fails: %s", c.Name, result.describe())
	i := len(r.explains)
	r.explains = append(r.explains, explanation{path: c.Name, at: result.At, text: "it did not end"})
	family := "4"
	if result.To.Addr().Is6() {
		family = "6"
	}
	to := c.To
	if strings.HasPrefix(to, "outside/") { // the path has addresses of both families
		to = "outside/" + result.To.String()
	}
	r.explaining.Go(func() {
		text, err := r.hairpin(context.Background(), "explain", c.From, to, "--family", family, "--proto", "tcp",
			"--live")
		if err != nil {
			text += "\n" + err.Error()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.explains[i].text = text
	})
}

// started returns how many faults have begun. They are in the order of their start.
func (r *run) started() int {
	i := slices.IndexFunc(r.windows, func(w Window) bool { return w.Began == 0 })
	if i < 0 {
		return len(r.windows)
	}
	return i
}

// kindImpact is the impact of a kind of fault on connections.
type kindImpact struct {
	injected    int
	undisturbed int           // of these, without another fault at the time; the fields below are theirs
	failed      int           // connections
	longest     time.Duration // without a success of a path through the node
}

// report writes the report, prints its end, and returns the violations.
func (r *run) report(ctx context.Context, s *Schedule) ([]Violation, error) {
	r.explaining.Wait()
	paths := make([]Path, len(r.connections))
	for i, c := range r.connections {
		paths[i] = c.Path
	}
	windows := r.windows[:r.started()]
	found := slices.Concat(Violations(paths, windows, r.stalls, r.results), SharedViolations(r.shared, windows),
		r.violations)
	var b strings.Builder
	fmt.Fprintf(&b, "# Chaos: seed %d, %s\n\n%d faults, %d connections on %d paths, %d violations.\n", s.Seed, s.For,
		len(windows), len(r.results), len(paths), len(found))
	b.WriteString("\n## Violations\n\n")
	for _, v := range found {
		name := ""
		if v.Path != nil {
			name = v.Path.Name + ": "
		}
		line := fmt.Sprintf("%.1f to %.1f s: %s%s (%d times); %s", v.From.Seconds(), v.To.Seconds(), name, v.What,
			v.Count,
			v.First)
		fmt.Fprintln(&b, "-", strings.ReplaceAll(line, "\n", "\n  "))
		fmt.Fprintln(r.opt.Out, line)
	}
	b.WriteString("\n## Faults\n\n| began | ended | fault | node | failed connections | longest without a " +
		"success | error |\n" +
		"|---|---|---|---|---|---|---|\n")
	for i := range windows {
		w := &windows[i]
		lost, longest := impact(w, paths, r.results)
		fmt.Fprintf(&b, "| %.1f s | %.1f s | %s | %s %s | %d | %.1f s | %s |\n", w.Began.Seconds(), w.Ended.Seconds(),
			w.Kind,
			w.Node, w.Peer, lost, longest.Seconds(), strings.ReplaceAll(w.Error, "\n", " "))
	}
	writeKinds(&b, windows, paths, r.results)
	if len(r.stalls) > 0 {
		b.WriteString("\n## Stalls of the machine\n\nNothing ran on it, so failed connections say nothing.\n\n")
	}
	for _, s := range r.stalls {
		fmt.Fprintf(&b, "- %.1f to %.1f s\n", s.from.Seconds(), s.to.Seconds())
	}
	b.WriteString("\n## Resources\n\n| | before | after |\n|---|---|---|\n")
	for _, what := range slices.Sorted(maps.Keys(r.before)) {
		fmt.Fprintf(&b, "| %s | %d | %d |\n", what, r.before[what], r.after[what])
	}
	for _, e := range r.explains {
		fmt.Fprintf(&b, "\n## hairpin explain at %.1f s: %s\n\n```\n%s```\n", e.at.Seconds(), e.path, e.text)
	}
	status, err := r.hairpin(ctx, "status")
	fmt.Fprintf(&b, "\n## hairpin status at the end\n\n```\n%s```\n", status)
	if err != nil {
		fmt.Fprintln(&b, err)
	}
	events, err := r.cluster.Kubectl(ctx, "", "get", "events", "-A", "--sort-by=.lastTimestamp",
		"--field-selector=type=Warning")
	fmt.Fprintf(&b, "\n## Events\n\n```\n%s```\n", events)
	if err != nil {
		fmt.Fprintln(&b, err)
	}
	file := filepath.Join(r.opt.Dir, "report.md")
	err = errors.Join(os.WriteFile(file, []byte(b.String()), 0o644),
		os.WriteFile(filepath.Join(r.opt.Dir, "status.txt"), []byte(strings.Join(r.unhealthy, "")), 0o644),
		writeJSON(filepath.Join(r.opt.Dir, "run.json"), map[string]any{"paths": paths, "windows": windows,
			"failures": failures(r.results), "shared": r.shared}))
	r.progress("%d faults, %d connections, %d violations: %s", len(windows), len(r.results), len(found), file)
	return found, err
}

func writeJSON(file string, value any) error {
	text, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// failures returns the results of connections that failed.
func failures(results []Result) (list []Result) {
	for _, r := range results {
		if r.Error != "" {
			list = append(list, r)
		}
	}
	return list
}

// impact returns how many connections of a fault's paths failed, and the longest time in which one
// of these paths had no success. New Services do not count.
func impact(w *Window, paths []Path, results []Result) (lost int, longest time.Duration) {
	during := span{w.Began, w.Ended + kinds[w.Kind].grace}
	last := map[int]time.Duration{}
	for i := range results {
		r := &results[i]
		p := &paths[r.Path]
		if fixed, floating := w.affects(p); p.Denied || p.Fresh || !fixed && !floating {
			continue
		}
		at := span{r.At, r.At + r.Took}
		if r.Error != "" {
			if at.overlaps(during) {
				lost++
			}
			continue
		}
		if before, ok := last[r.Path]; ok && (span{before, at.to}).overlaps(during) {
			longest = max(longest, at.to-before)
		}
		last[r.Path] = at.to
	}
	return lost, longest
}

// writeKinds writes a table with the impact of each kind of fault.
func writeKinds(b *strings.Builder, windows []Window, paths []Path, results []Result) {
	all := map[string]*kindImpact{}
	for i := range windows {
		w := &windows[i]
		f := all[w.Kind]
		if f == nil {
			f = &kindImpact{}
			all[w.Kind] = f
		}
		if w.Error == "" {
			f.injected++
		}
		if slices.ContainsFunc(windows, func(o Window) bool {
			return o.Fault != w.Fault && kinds[o.Kind].breaks && o.Began < w.Ended+syncTime/3 && w.Began < o.Ended+
				syncTime/3
		}) {
			continue
		}
		lost, longest := impact(w, paths, results)
		f.undisturbed, f.failed, f.longest = f.undisturbed+1, f.failed+lost, max(f.longest, longest)
	}
	b.WriteString("\n## Kinds of faults\n\nThe figures are those of faults that no fault of another node's " +
		"packets disturbed.\n\n" +
		"| fault | injected | undisturbed | failed connections | longest without a success |\n|---|---|---|---|---|\n")
	for _, name := range kindNames {
		if f := all[name]; f != nil {
			fmt.Fprintf(b, "| %s | %d | %d | %d | %.1f s |\n", name, f.injected, f.undisturbed, f.failed, f.longest.Seconds())
		}
	}
}
