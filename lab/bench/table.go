package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// row is one line of a table: our value beside a peer's.
type row struct {
	what         string
	unit         string
	ours, theirs float64
	more         bool // a greater number is better
}

// print prints a table with the ratio, ours / theirs.
func (w *world) print(title, their string, rows []row) {
	fmt.Fprintf(w.opt.Out, "\n%s\n%-66s %10s %11s  %-8s %5s\n", title, "", "HAIRPIN", strings.ToUpper(their), "",
		"RATIO")
	for _, r := range rows {
		ratio, unit := "", r.unit
		if r.theirs != 0 && r.ours != 0 {
			ratio = fmt.Sprintf("%.2f", r.ours/r.theirs)
		}
		if r.more {
			unit += " ↑"
		}
		fmt.Fprintf(w.opt.Out, "%-66s %10s %11s  %-8s %5s\n", r.what, number(r.ours), number(r.theirs), unit, ratio)
	}
	fmt.Fprintln(w.opt.Out)
}

// number formats with about three significant digits.
func number(f float64) string {
	switch {
	case f == 0:
		return "-"
	case f < 10:
		return fmt.Sprintf("%.2f", f)
	case f < 100:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.0f", f)
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// quantile returns a quantile of times in milliseconds, by the nearest rank.
func quantile(times []time.Duration, q float64) float64 {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	rank := int(q*float64(len(sorted)) + 0.999999)
	return millis(sorted[max(0, min(rank, len(sorted))-1)])
}
