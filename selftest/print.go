package selftest

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hairpin/report"
)

// names lists nodes.
func names(nodes []corev1.Node) string {
	var list []string
	for _, n := range nodes {
		list = append(list, n.Name)
	}
	return strings.Join(list, ", ")
}

// failed returns the checks without success.
func (g *group) failed() (list []*check) {
	for _, c := range g.checks {
		if c.result.Error != "" {
			list = append(list, c)
		}
	}
	return list
}

// show prints the results, and writes the file for JUnit. It returns report.ErrProblems if a check
// failed.
func (t *test) show(groups []*group, paths []*check) error {
	all, failed := 0, 0
	for _, g := range groups {
		bad := g.failed()
		all, failed = all+len(g.checks), failed+len(bad)
		if len(bad) == 0 {
			fmt.Fprintf(t.w, "ok    %s: %s\n", g.title, report.Counted(len(g.checks), "check"))
		} else {
			fmt.Fprintf(t.w, "FAIL  %s: %d of %s\n", g.title, len(bad), report.Counted(len(g.checks), "check"))
		}
		for _, c := range g.checks {
			t.showCheck(c)
		}
	}
	if t.Measure > 0 {
		g := group{"measurements", paths}
		all, failed = all+len(paths), failed+len(g.failed())
		groups = append(groups, &g)
		if err := table(t.w, paths); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	took := time.Since(t.begin).Round(time.Second)
	if _, err := fmt.Fprintf(t.w, "%s: %d passed, %d failed, in %s\n", report.Counted(all, "check"), all-failed, failed,
		took); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if t.JUnit != "" {
		text, err := junit(groups, took)
		if err == nil {
			err = os.WriteFile(t.JUnit, text, 0o644)
		}
		if err != nil {
			return fmt.Errorf("--junit: %w", err)
		}
	}
	if failed > 0 {
		return report.ErrProblems
	}
	return nil
}

// showCheck prints a failure with its explanation, or with Verbose a success.
func (t *test) showCheck(c *check) {
	r := &c.result
	switch {
	case r.Error == "" && !t.Verbose:
	case r.Error == "":
		fmt.Fprintf(t.w, "      %s: %.1f ms%s\n", c.name, r.Millis, detail(r.Note, r.Attempts))
	default:
		fmt.Fprintf(t.w, "      %s%s: %s%s\n", c.name, c.address(), r.Error, detail(r.Note, r.Attempts))
		if c.question.To == "" { // it has no path
			return
		}
		fmt.Fprintf(t.w, "        $ %s\n", c.command())
		for line := range strings.Lines(c.explain) {
			fmt.Fprintf(t.w, "        %s\n", strings.TrimSuffix(line, "\n"))
		}
	}
}

func (c *check) address() string {
	if !c.To.IsValid() {
		return ""
	}
	return " (" + c.To.String() + ")"
}

func detail(note string, attempts int) string {
	if attempts > 1 {
		note = strings.TrimPrefix(note+fmt.Sprintf(", %d attempts", attempts), ", ")
	}
	if note == "" {
		return ""
	}
	return " (" + note + ")"
}

// table prints the measurements. The last column compares the throughput with that of a more direct
// path.
func table(w io.Writer, paths []*check) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nPATH\tCONNECT\tROUND TRIP\tTHROUGHPUT\tCOMPARED WITH\n")
	for _, c := range paths {
		m := c.result.Measured
		if m == nil {
			fmt.Fprintf(t, "%s\t%s\n", c.name, c.result.Error)
			continue
		}
		compared := ""
		if c.baseline != nil && c.baseline.result.Measured != nil {
			compared = fmt.Sprintf("%.2f × %s", m.MegabitsPS/c.baseline.result.Measured.MegabitsPS, c.baseline.name)
		}
		fmt.Fprintf(t, "%s\t%.2f ms\t%.2f ms\t%.0f Mbit/s\t%s\n", c.name, m.ConnectMs, m.RoundTripMs, m.MegabitsPS,
			compared)
	}
	return errors.Join(t.Flush(), newline(w))
}

func newline(w io.Writer) error {
	_, err := fmt.Fprintln(w)
	return err
}

// The elements of JUnit's format that its readers know.
type (
	suites struct {
		XMLName  xml.Name `xml:"testsuites"`
		Tests    int      `xml:"tests,attr"`
		Failures int      `xml:"failures,attr"`
		Time     string   `xml:"time,attr"`
		Suites   []suite  `xml:"testsuite"`
	}
	suite struct {
		Name     string `xml:"name,attr"`
		Tests    int    `xml:"tests,attr"`
		Failures int    `xml:"failures,attr"`
		Cases    []testCase
	}
	testCase struct {
		XMLName xml.Name `xml:"testcase"`
		Class   string   `xml:"classname,attr"`
		Name    string   `xml:"name,attr"`
		Time    string   `xml:"time,attr"`
		Failure *failure `xml:"failure"`
		Output  string   `xml:"system-out,omitempty"`
	}
	failure struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// junit returns the results in JUnit's format: one suite for each group.
func junit(groups []*group, took time.Duration) ([]byte, error) {
	all := suites{Time: seconds(float64(took.Milliseconds()))}
	for _, g := range groups {
		s := suite{Name: g.title, Tests: len(g.checks), Failures: len(g.failed())}
		all.Tests, all.Failures = all.Tests+s.Tests, all.Failures+s.Failures
		for _, c := range g.checks {
			x := testCase{Class: "hairpin." + strings.ReplaceAll(g.title, " → ", "."), Name: c.name,
				Time: seconds(c.result.Millis)}
			if c.result.Error != "" {
				x.Failure = &failure{c.result.Error, c.explain}
			}
			if m := c.result.Measured; m != nil {
				x.Output = fmt.Sprintf("connect %.2f ms, round trip %.2f ms, %.0f Mbit/s", m.ConnectMs, m.RoundTripMs,
					m.MegabitsPS)
			}
			s.Cases = append(s.Cases, x)
		}
		all.Suites = append(all.Suites, s)
	}
	text, err := xml.MarshalIndent(all, "", "  ")
	return append([]byte(xml.Header), append(text, '\n')...), err
}

func seconds(millis float64) string { return fmt.Sprintf("%.3f", millis/1000) }
