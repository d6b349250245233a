package scale

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// Table has a column for each size of the cluster.
type Table struct {
	Of    string `json:"of"` // the unit of the sizes
	Sizes []int  `json:"sizes"`
	Rows  []*Row `json:"rows"`
}

// Row holds one measurement, in the order of the sizes.
type Row struct {
	What   string    `json:"what"`
	Unit   string    `json:"unit"`
	Values []float64 `json:"values"`
}

// Add adds a value for the last size.
func (t *Table) Add(what, unit string, value float64) {
	r := t.Row(what)
	if r == nil {
		r = &Row{What: what, Unit: unit}
		t.Rows = append(t.Rows, r)
	}
	for len(r.Values) < len(t.Sizes)-1 {
		r.Values = append(r.Values, 0)
	}
	r.Values = append(r.Values, value)
}

// Row returns the row of a name, or nil.
func (t *Table) Row(what string) *Row {
	i := slices.IndexFunc(t.Rows, func(r *Row) bool { return r.What == what })
	if i < 0 {
		return nil
	}
	return t.Rows[i]
}

// Print writes the table as Markdown. The last column is the ratio of the last size to the first.
func (t *Table) Print(w io.Writer) {
	head, line := "| |", "|---|"
	for _, n := range t.Sizes {
		head += fmt.Sprintf(" %d %s |", n, t.Of)
		line += "---|"
	}
	fmt.Fprintf(w, "\n%s unit | ratio |\n%s---|---|\n", head, line)
	for _, r := range t.Rows {
		text := "| " + r.What + " |"
		for _, v := range r.Values {
			text += " " + number(v) + " |"
		}
		ratio := ""
		if first, last := r.Values[0], r.Values[len(r.Values)-1]; first != 0 && len(r.Values) == len(t.Sizes) {
			ratio = fmt.Sprintf("%.2f", last/first)
		}
		fmt.Fprintf(w, "%s %s | %s |\n", text, r.Unit, ratio)
	}
	fmt.Fprintln(w)
}

// Write writes the table as JSON.
func (t *Table) Write(file string) error {
	text, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// number formats with about three significant digits.
func number(f float64) string {
	switch {
	case f == float64(int(f)):
		return fmt.Sprint(int(f))
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
	sorted := slices.Sorted(slices.Values(times))
	return millis(sorted[max(0, int(q*float64(len(sorted))+0.999999)-1)])
}
