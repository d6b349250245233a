package bench

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"hairpin/lab"
)

// probed is how many Services are changed in turn.
const probed = 16

// rest is the pause between two changes, besides twice the duration of the last one. Kube-proxy
// begins a write at least a second after the end of the one before, which is later than its effect.
// Waiting for that must not be measured.
const rest = 1100 * time.Millisecond

// quiet is how long nothing is changed, to measure the idle usage of the processes.
const quiet = 5 * time.Second

// changeResult holds the measurements of one side with one number of Services.
type changeResult struct {
	cold    time.Duration
	coldCPU time.Duration
	times   []time.Duration
	writes  []time.Duration // of times, until the API write returned
	// CPU time per change, until the next one; and memory after all of them
	spent map[string]lab.Usage
	idle  map[string]lab.Usage // CPU time in a period of the same length without a change
}

// change measures, for each number of Services: a cold start, one endpoint changed, memory and CPU.
func (w *world) change(ctx context.Context) error {
	var rows, spent, memory []row
	for _, size := range w.opt.Sizes {
		if err := w.grow(ctx, size); err != nil {
			return err
		}
		var results [2]changeResult
		err := w.each(ctx, func(ctx context.Context, s *side) (err error) {
			results[s.index], err = w.changeOn(ctx, s, size)
			return err
		})
		if err != nil {
			return err
		}
		a, b := results[0], results[1]
		of := fmt.Sprintf(", %d Services", size)
		rows = append(rows,
			row{what: "one endpoint changed, API write to answer, p50" + of, unit: "ms", ours: quantile(a.times, 0.5),
				theirs: quantile(b.times, 0.5)},
			row{what: "of it, until the API write returns, p50" + of, unit: "ms", ours: quantile(a.writes, 0.5),
				theirs: quantile(b.writes, 0.5)},
			row{what: "one endpoint changed, p99" + of, unit: "ms", ours: quantile(a.times, 0.99),
				theirs: quantile(b.times, 0.99)},
			row{what: "cold start until the last Service answers" + of, unit: "s", ours: a.cold.Seconds(),
				theirs: b.cold.Seconds()},
			row{what: "CPU for it, all processes" + of, unit: "s", ours: a.coldCPU.Seconds(),
				theirs: b.coldCPU.Seconds()},
		)
		spent = append(spent, spentRows("CPU for one change, all processes"+of, "ms", a.spent, b.spent,
			func(u lab.Usage) float64 { return millis(u.CPU) })...)
		spent = append(spent, spentRows("CPU of as long a time without a change"+of, "ms", a.idle, b.idle,
			func(u lab.Usage) float64 { return millis(u.CPU) })...)
		memory = append(memory, spentRows("resident memory, all processes"+of, "MB", a.spent, b.spent,
			func(u lab.Usage) float64 { return float64(u.RSS) / 1024 })...)
	}
	w.print("Changes", "kube-proxy", rows)
	w.print("What the processes of a node use", "kube-proxy", append(spent, memory...))
	return nil
}

// spentRows returns the usage of all processes, and of each of ours.
func spentRows(what, unit string, a, b map[string]lab.Usage, of func(lab.Usage) float64) []row {
	rows := []row{{what: what, unit: unit, ours: of(sum(a)), theirs: of(sum(b))}}
	for _, name := range slices.Sorted(maps.Keys(a)) {
		rows = append(rows, row{what: "  " + name, unit: unit, ours: of(a[name])})
	}
	return rows
}

func (w *world) changeOn(ctx context.Context, s *side, size int) (r changeResult, err error) {
	last := size - 1
	if err := w.pointTo(ctx, last, serverAddress, outside); err != nil {
		return r, err
	}
	before, err := usedBefore(s)
	if err != nil {
		return r, err
	}
	begin := time.Now()
	if err := s.start(ctx); err != nil {
		return r, err
	}
	if r.cold, err = w.until(ctx, s, vip(last), "server", begin, 30*time.Second); err != nil {
		return r, err
	}
	w.say("%s, %d Services: cold start %.2f s", s.name, size, r.cold.Seconds())
	if err := s.ready(ctx); err != nil {
		return r, err
	}
	time.Sleep(rest) // until a completed nft process has exited and been counted
	after, err := usedBy(s)
	if err != nil {
		return r, err
	}
	r.coldCPU = sum(after).CPU - before
	if err := s.addPods(ctx); err != nil {
		return r, err
	}
	if err := w.changes(ctx, s, size, &r); err != nil {
		return r, err
	}
	w.say("%s, %d Services: one endpoint changed p50 %.1f ms, p99 %.1f ms", s.name, size, quantile(r.times, 0.5),
		quantile(r.times, 0.99))
	return r, nil
}

// usedBefore returns the CPU time of what runs before the program is started.
func usedBefore(s *side) (time.Duration, error) {
	var total time.Duration
	for _, name := range s.all {
		if name == s.program {
			continue
		}
		u, err := s.node.Used(name)
		if err != nil {
			return 0, err
		}
		total += u.CPU
	}
	return total, nil
}

func vip(i int) netip.AddrPort { return netip.AddrPortFrom(clusterIP(i), 80) }

// changes moves one Service after the other from one pod to the other.
func (w *world) changes(ctx context.Context, s *side, size int, r *changeResult) error {
	where := func(k int) int { return k * (size - 1) / probed } // never the last one
	to := func(k, pod int) error {
		return w.pointTo(ctx, where(k), s.pods[pod].IPs()[0].String(), inside)
	}
	for k := range probed {
		if err := to(k, 0); err != nil {
			return err
		}
	}
	for k := range probed {
		if _, err := w.until(ctx, s, vip(where(k)), s.pods[0].Name(), time.Now(), 10*time.Second); err != nil {
			return err
		}
	}
	time.Sleep(rest) // pending work, such as kube-proxy's removal of old chains
	asleep, err := usedBy(s)
	if err != nil {
		return err
	}
	time.Sleep(quiet)
	before, err := usedBy(s)
	if err != nil {
		return err
	}
	first := time.Now()
	for n := range w.opt.Rounds {
		k, pod := n%probed, 1-n/probed%2
		begin, wrote, written := time.Now(), make(chan error, 1), time.Duration(0)
		go func() {
			err := to(k, pod)
			written = time.Since(begin)
			wrote <- err
		}()
		took, err := w.until(ctx, s, vip(where(k)), s.pods[pod].Name(), begin, 10*time.Second)
		if e := <-wrote; e != nil {
			err = e
		}
		if err != nil {
			return err
		}
		r.times, r.writes = append(r.times, took), append(r.writes, written)
		time.Sleep(rest + 2*took)
	}
	after, err := usedBy(s)
	if err != nil {
		return err
	}
	rounds := time.Duration(w.opt.Rounds)
	share := time.Since(first).Seconds() / quiet.Seconds()
	r.spent, r.idle = map[string]lab.Usage{}, map[string]lab.Usage{}
	for name, u := range after {
		r.spent[name] = lab.Usage{CPU: (u.CPU - before[name].CPU) / rounds, RSS: u.RSS}
		r.idle[name] = lab.Usage{CPU: time.Duration(float64(before[name].CPU-asleep[name].CPU)*share) / rounds}
	}
	return nil
}
