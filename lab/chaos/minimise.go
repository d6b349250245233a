package chaos

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"hairpin/lab/cluster"
)

// Minimise returns a part of a list that still fails, from which no element can be left out
// (Zeller's ddmin). fails is called with parts in the order of the list; all of it fails. An error
// ends the search.
func Minimise[T any](all []T, fails func([]T) (bool, error)) ([]T, error) {
	for parts := 2; len(all) > 1; {
		size := (len(all) + parts - 1) / parts
		chunks := slices.Collect(slices.Chunk(all, size))
		smaller := false
		for i, c := range chunks {
			rest := slices.Concat(slices.Concat(chunks[:i]...), slices.Concat(chunks[i+1:]...))
			var err error
			if len(chunks) > 2 { // of two, each is the rest of the other
				if smaller, err = fails(c); smaller {
					all, parts = slices.Clone(c), 2
				}
			}
			if err == nil && !smaller {
				if smaller, err = fails(rest); smaller {
					all, parts = rest, max(parts-1, 2)
				}
			}
			if err != nil {
				return nil, err
			}
			if smaller {
				break
			}
		}
		switch {
		case smaller:
		case size == 1:
			return all, nil
		default:
			parts = min(2*parts, len(all))
		}
	}
	return all, nil
}

// RunMinimise runs parts of a schedule until it has the smallest that still violates an invariant
// which the whole schedule violates, and leaves a report of each run in a folder below opt.Dir.
func RunMinimise(ctx context.Context, c *cluster.Cluster, opt Options) error {
	whole, runs := opt.schedule(c), 0
	opt.giveUpEarly = true
	var invariants []string
	var outOfSync bool // since the last run
	fails := func(faults []Fault) (bool, error) {
		part := part(whole, faults)
		runs++
		one := opt
		one.Schedule, one.Dir = &part, filepath.Join(opt.Dir, fmt.Sprint("run-", runs))
		fmt.Fprintf(opt.Out, "\nrun %d: %d of %d faults\n", runs, len(faults), len(whole.Faults))
		if outOfSync { // only new agents repair that
			fmt.Fprintln(opt.Out, "the agents are replaced")
			if err := errors.Join(rollout(ctx, c, "restart", agents), rolledOut(ctx, c, agents)); err != nil {
				return false, err
			}
		}
		found, err := runOnce(ctx, c, one)
		if err != nil {
			return false, fmt.Errorf("run %d: %w", runs, err)
		}
		outOfSync = slices.ContainsFunc(found, func(v Violation) bool { return v.What == notInSync })
		if runs == 1 {
			for _, v := range found {
				invariants = append(invariants, v.What)
			}
		}
		same := slices.ContainsFunc(found, func(v Violation) bool { return slices.Contains(invariants, v.What) })
		return same, ctx.Err()
	}
	switch bad, err := fails(whole.Faults); {
	case err != nil:
		return err
	case !bad:
		return errors.New("the whole schedule does not fail")
	}
	faults, err := Minimise(whole.Faults, fails)
	if err != nil {
		return err
	}
	smallest := part(whole, faults)
	file := filepath.Join(opt.Dir, "minimal.json")
	fmt.Fprintf(opt.Out, "\nafter %d runs, %s:\n", runs, file)
	smallest.Print(opt.Out)
	return smallest.Save(file)
}

// part returns a schedule of some of the faults, of which the first begins after startDelay.
func part(s *Schedule, faults []Fault) Schedule {
	p := Schedule{Seed: s.Seed, Nodes: s.Nodes, Faults: slices.Clone(faults)}
	if len(faults) == 0 {
		return p
	}
	earlier := faults[0].Start - startDelay
	for i := range p.Faults {
		f := &p.Faults[i]
		f.Start, f.End = f.Start-earlier, f.End-earlier
		p.For = max(p.For, f.End)
	}
	return p
}
