package conformance

import (
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// result is the result of a spec.
type result struct {
	Name    string  `xml:"name,attr"`
	Seconds float64 `xml:"time,attr"`
	Failure *said   `xml:"failure"`
	Error   *said   `xml:"error"`
	Skipped *said   `xml:"skipped"`
}

type said struct {
	Type    string `xml:"type,attr"`
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// readReport reads the specs that were run from a report in JUnit's form, sorted by name.
func readReport(file string) ([]result, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var report struct {
		Suites []struct {
			Cases []result `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(text, &report); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	var results []result
	for _, s := range report.Suites {
		for _, c := range s.Cases {
			name, isSpec := strings.CutPrefix(c.Name, "[It] ")
			if !isSpec && c.Failure == nil && c.Error == nil { // steps before and after all specs
				continue
			}
			if c.Skipped != nil && c.Skipped.why() == "" { // not in the focus
				continue
			}
			c.Name = name
			results = append(results, c)
		}
	}
	slices.SortFunc(results, func(a, b result) int { return strings.Compare(a.Name, b.Name) })
	return results, nil
}

// longest is the maximum length of a reason in the table, in characters.
const longest = 120

// why returns the reason that ginkgo reports: "skipped - REASON", or only "skipped" where FOCUS and
// SKIP left a spec out.
func (s *said) why() string {
	text := strings.TrimPrefix(strings.TrimPrefix(s.Message, "skipped"), " - ")
	if text == "" {
		text = s.Text
	}
	first, _, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(text), "[FAILED]")), "\n")
	if line := []rune(first); len(line) > longest {
		return string(line[:longest]) + "…"
	}
	return first
}

// what returns a result as text.
func (r result) what() string {
	switch {
	case r.Failure != nil:
		return "FAILED: " + r.Failure.why()
	case r.Error != nil:
		return "FAILED: " + r.Error.why()
	case r.Skipped != nil:
		return "skipped: " + r.Skipped.why()
	}
	return "ok"
}

// printTable prints one line for each spec, and their sum.
func printTable(w io.Writer, results []result) (failed bool) {
	var counts struct{ passed, failed, skipped int }
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SPEC\tSECONDS\tRESULT")
	for _, r := range results {
		what := r.what()
		switch kind, _, _ := strings.Cut(what, ":"); kind {
		case "ok":
			counts.passed++
		case "skipped":
			counts.skipped++
		default:
			counts.failed++
		}
		fmt.Fprintf(t, "%s\t%.1f\t%s\n", shortName(r.Name), r.Seconds, what)
	}
	_ = t.Flush() // an error of the caller's output cannot be reported
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped by themselves\n", counts.passed, counts.failed, counts.skipped)
	return counts.failed > 0 || counts.passed == 0
}

// shortName removes from a spec's name the tags that most of them have.
func shortName(name string) string {
	for _, tag := range []string{"[sig-network]", "[LinuxOnly]", "[NodeConformance]", "[Conformance]"} {
		name = strings.ReplaceAll(name, tag, "")
	}
	return strings.Join(strings.Fields(name), " ")
}
