package bench

import (
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	var times []time.Duration
	for i := range 50 {
		times = append(times, time.Duration(50-i)*time.Millisecond)
	}
	for q, want := range map[float64]float64{0.5: 25, 0.99: 50, 0.98: 49, 1: 50} {
		if got := quantile(times, q); got != want {
			t.Errorf("quantile %v of 1 to 50 ms: %v, want %v", q, got, want)
		}
	}
	if times[0] != 50*time.Millisecond {
		t.Error("the list was changed")
	}
}

func TestTable(t *testing.T) {
	var out strings.Builder
	w := &world{opt: Options{Out: &out}}
	w.print("Title", "kube-proxy", []row{{what: "a", unit: "ms", ours: 1, theirs: 2},
		{what: "host → pod", unit: "1/s", ours: 300, more: true}})
	for _, want := range []string{"Title", "1.00        2.00  ms        0.50", "300           -  1/s ↑"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

func TestBeside(t *testing.T) {
	for _, c := range []struct {
		list, to []float64
		want     string
	}{
		{nil, []float64{100}, "-"}, {[]float64{90, 300, 100, 80, 120}, nil, "100 (80.0)"},
		// The ratio of the medians would be 0.91.
		{[]float64{90, 300, 100, 80, 120}, []float64{110, 1000, 110, 110, 100}, "100 (80.0)  0.82"},
	} {
		if got := beside(c.list, c.to); got != c.want {
			t.Errorf("beside %v: %q, want %q", c.list, got, c.want)
		}
	}
}
