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
// (Zeller's ddmin). fails is called with parts in the order of the list; all of it fails.
func Minimise[T any](all []T, fails func([]T) bool) []T {
	for parts := 2; len(all) > 1; {
		size := (len(all) + parts - 1) / parts
		chunks := slices.Collect(slices.Chunk(all, size))
		smaller := false
		for i, c := range chunks {
			rest := slices.Concat(slices.Concat(chunks[:i]...), slices.Concat(chunks[i+1:]...))
			if len(c) < len(rest) && fails(c) {
				all, parts, smaller = slices.Clone(c), 2, true
				break
			}
			if fails(rest) {
				all, parts, smaller = rest, max(parts-1, 2), true
				break
			}
		}
		switch {
		case smaller:
		case size == 1:
			return all
		default:
			parts = min(2*parts, len(all))
		}
	}
	return all
}

// RunMinimise runs parts of a schedule until it has the smallest that still fails, and leaves a
// report of each run in a folder below opt.Dir.
func RunMinimise(ctx context.Context, c *cluster.Cluster, opt Options) error {
	whole, runs := opt.schedule(c), 0
	fails := func(faults []Fault) bool {
		part := part(whole, faults)
		runs++
		one := opt
		one.Schedule, one.Dir = &part, filepath.Join(opt.Dir, fmt.Sprint("run-", runs))
		fmt.Fprintf(opt.Out, "\nrun %d: %d of %d faults\n", runs, len(faults), len(whole.Faults))
		return errors.Is(Run(ctx, c, one), ErrFailed)
	}
	if !fails(whole.Faults) {
		return errors.New("the whole schedule does not fail")
	}
	least := part(whole, Minimise(whole.Faults, fails))
	if err := ctx.Err(); err != nil {
		return err
	}
	file := filepath.Join(opt.Dir, "minimal.json")
	fmt.Fprintf(opt.Out, "\nafter %d runs, %s:\n", runs, file)
	least.Print(opt.Out)
	return least.Save(file)
}

// part returns a schedule of some of the faults, without the time before the first.
func part(s *Schedule, faults []Fault) Schedule {
	p := Schedule{Seed: s.Seed, Nodes: s.Nodes, Faults: slices.Clone(faults)}
	if len(faults) == 0 {
		return p
	}
	early := faults[0].Start - leadIn
	for i := range p.Faults {
		f := &p.Faults[i]
		f.Start, f.End = f.Start-early, f.End-early
		p.For = max(p.For, f.End)
	}
	return p
}
