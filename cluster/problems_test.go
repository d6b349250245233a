package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestProblems: Problems keeps MaxProblems of each field, at any index, and counts each other one
// once.
func TestProblems(t *testing.T) {
	var p Problems
	web := Owner{"Service", "default", "web"}
	for range 2 {
		for i := range 52_000 {
			p.Add(web, fmt.Sprintf("spec.externalIPs[%d]", i), "%d is no address", i)
		}
	}
	p.Add(web, "spec.ports", "%s", strings.Repeat("x", 260_000))
	p.Add(Owner{"Service", "default", "other"}, "spec.ports", "two ports")
	list := p.List()
	if p.Len() != 52_002 || len(list) != MaxProblems+3 {
		t.Errorf("%d problems, %d listed", p.Len(), len(list))
	}
	if more := list[MaxProblems]; more.Error() != "Service/default/web: spec.externalIPs[]: and 51980 more problems" {
		t.Error(more)
	}
	if long := list[MaxProblems+1].Message; len(long) > maxMessage || !strings.HasSuffix(long, "bytes more)") {
		t.Errorf("a message of %d bytes", len(long))
	}
	list = SortProblems(list)
	var texts []string
	for _, x := range list[:len(list)-1] {
		texts = append(texts, x.Error())
	}
	// The other Service's, then one of spec.ports and 19 addresses of web's.
	if len(list) != MaxProblems+2 || texts[0] != "Service/default/other: spec.ports: two ports" ||
		!strings.Contains(texts[MaxProblems], "spec.ports: xxx") {
		t.Errorf("%d: %s", len(list), strings.Join(texts, "\n"))
	}
	if last := list[len(list)-1].Error(); last != "Service/default/web: and 51981 more problems" {
		t.Error(last)
	}
}

// TestSortProblems: shortening in two steps counts as many problems as in one, and no object has
// more than MaxProblems.
func TestSortProblems(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		problem := rapid.Custom(func(t *rapid.T) Problem {
			return Problem{
				Owner:   Owner{Kind: "Pod", Name: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "pod")},
				Field:   rapid.SampledFrom([]string{"", "spec.x[1]", "spec.x[2]", "y"}).Draw(t, "field"),
				Message: fmt.Sprint(rapid.IntRange(0, 60).Draw(t, "message")),
			}
		})
		all := rapid.SliceOfNDistinct(problem, 0, 150, rapid.ID).Draw(t, "problems")
		half := rapid.IntRange(0, len(all)).Draw(t, "half")
		once := SortProblems(slices.Clone(all))
		twice := SortProblems(slices.Concat(SortProblems(slices.Clone(all[:half])), all[half:]))
		want := map[string]int{}
		for _, p := range all {
			want[p.Owner.Name]++
		}
		for _, list := range [][]Problem{once, twice, SortProblems(slices.Clone(once))} {
			if !slices.IsSortedFunc(list, Problem.Compare) {
				t.Fatalf("not sorted: %v", list)
			}
			listed, count := map[string]int{}, map[string]int{}
			for _, p := range list {
				count[p.Owner.Name] += max(1, p.More)
				if p.More == 0 {
					listed[p.Owner.Name]++
				}
			}
			for pod, n := range want {
				if count[pod] != n || listed[pod] != min(n, MaxProblems) {
					t.Fatalf("pod %s has %d problems: %d are listed, %d counted", pod, n, listed[pod], count[pod])
				}
			}
		}
	})
}

func TestCut(t *testing.T) {
	for _, text := range []string{"short", strings.Repeat("wörd ", 300), strings.Repeat("ö", 1000),
		strings.Repeat("x", 1025), strings.Repeat("x", 1024)} {
		got := Truncate(text, 1024)
		if len(got) > 1024 || !utf8.ValidString(got) || len(text) <= 1024 && got != text {
			t.Errorf("%d bytes are %d: %q", len(text), len(got), got)
		}
		if begin, end, is := strings.Cut(got, " … ("); is {
			if want := fmt.Sprintf("%d bytes more)", len(text)-len(begin)); end != want ||
				!strings.HasPrefix(text, begin) || len(begin) < 900 {
				t.Errorf("%q, want %q", end, want)
			}
		}
	}
	if got := Truncate(strings.Repeat("wörd ", 300), 1024); !strings.HasSuffix(strings.Split(got, " … ")[0], "wörd") {
		t.Errorf("a word is cut: %q", got)
	}
}
