package bench

import (
	"context"
	"time"

	"hairpin/lab"
)

// burst is how many Services are created at once.
const burst = 1000

// create measures how long Services that are created at once take until the last one answers.
func (w *world) create(ctx context.Context) error {
	if err := w.grow(ctx, w.opt.Sizes[0]); err != nil {
		return err
	}
	var total, after [2]time.Duration
	var spent [2]map[string]lab.Usage
	err := w.each(ctx, func(ctx context.Context, s *side) (err error) {
		total[s.index], after[s.index], spent[s.index], err = w.createOn(ctx, s)
		return err
	})
	if err != nil {
		return err
	}
	w.print("1000 Services created at once", "kube-proxy", append([]row{
		{what: "from the first API write to the answer of the last", unit: "ms", ours: millis(total[0]),
			theirs: millis(total[1])},
		{what: "from the return of the last API write", unit: "ms", ours: millis(after[0]), theirs: millis(after[1])},
	}, spentRows("CPU for it, all processes", "ms", spent[0], spent[1],
		func(u lab.Usage) float64 { return millis(u.CPU) })...))
	return nil
}

func (w *world) createOn(ctx context.Context,
	s *side) (total, after time.Duration, spent map[string]lab.Usage, err error) {
	if err = s.start(ctx); err != nil {
		return
	}
	if err = s.ready(ctx); err != nil {
		return
	}
	time.Sleep(rest)
	before, err := usedBy(s)
	if err != nil {
		return
	}
	first, end := w.made, w.made+burst
	begin := time.Now()
	err = parallel(ctx, first, end, func(ctx context.Context, i int) error {
		return w.makeService(ctx, i, outside, []string{serverAddress})
	})
	if err != nil {
		return
	}
	written := time.Now()
	if after, err = w.until(ctx, s, vip(end-1), "server", written, 10*time.Second); err != nil {
		return
	}
	total = time.Since(begin)
	time.Sleep(rest)
	now, err := usedBy(s)
	if err != nil {
		return
	}
	spent = map[string]lab.Usage{}
	for name, u := range now {
		spent[name] = lab.Usage{CPU: u.CPU - before[name].CPU}
	}
	// The last in the list may not be the last served, so every Service is checked. A userspace
	// datapath spends CPU on these requests.
	for i := first; i < end; i++ {
		if _, err = w.until(ctx, s, vip(i), "server", written, 10*time.Second); err != nil {
			return
		}
	}
	w.say("%s: %d Services created, the last one answered after %.2f s, %.2f s after its creation", s.name, burst,
		total.Seconds(), after.Seconds())
	err = parallel(ctx, first, end, func(ctx context.Context, i int) error { return w.unmake(ctx, serviceName(i)) })
	return total, after, spent, err
}
