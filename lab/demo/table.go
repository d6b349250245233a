package demo

import (
	"fmt"
	"io"
	"strings"

	"hairpin/lab/progress"
)

const rowFormat = "%-8s %-14s %-16s %-5s %-17s %-17s %7s  %s\n"

// table prints results as they arrive.
type table struct {
	out            io.Writer
	step           *progress.Step // progress of all; may be nil
	all            int
	begun          bool
	passed, failed int
	other          int // trials with an Exception for this lab
	trials         bool
	attacks        bool
}

func (t *table) tell(r Result) {
	if !t.begun {
		fmt.Fprintf(t.out, rowFormat, "FROM", "TO", "PATH", "OVER", "SERVER SAW", "EXPECTED", "TIME", "")
		t.begun = true
	}
	verdict := "ok"
	if r.Problem != "" {
		verdict = "FAILED: " + strings.ReplaceAll(r.Problem, "\n", "; ")
		t.failed++
	} else {
		t.passed++
	}
	got := r.Got
	if got == "" {
		got = "-"
	}
	fmt.Fprintf(t.out, rowFormat, r.From, r.To, r.Path, r.Protocol, got, r.Want, fmt.Sprintf("%.1f ms", r.Millis),
		verdict)
	t.counts()
}

// counts shows how many are done, and how many remain.
func (t *table) counts() {
	if done := t.passed + t.failed + t.other; t.step != nil {
		t.step.Say("%d done, %d to go", done, t.all-done)
	}
}

// trial prints the outcome of a trial.
func (t *table) trial(r trialResult) {
	const format = "%-58s %9s  %s\n"
	if !t.trials {
		fmt.Fprintf(t.out, format, "TRIAL", "TIME", "")
		t.trials = true
	}
	verdict := "ok  " + r.note
	switch {
	case r.otherwise != "":
		verdict = "not tried: " + r.otherwise
		t.other++
	case r.err != nil:
		verdict = "FAILED: " + strings.ReplaceAll(r.err.Error(), "\n", "; ")
		t.failed++
	default:
		t.passed++
	}
	fmt.Fprintf(t.out, format, r.name, fmt.Sprintf("%.0f ms", r.millis), strings.TrimSpace(verdict))
	t.counts()
}

// attack prints the outcome of an attack.
func (t *table) attack(r attackResult) {
	const format = "%-9s %-92s %9s  %s\n"
	if !t.attacks {
		fmt.Fprintf(t.out, format, "WHO", "WHAT", "TIME", "WHAT HAPPENED")
		t.attacks = true
	}
	verdict := "refused: " + r.happened
	switch {
	case r.not != "":
		verdict = "not tried: " + r.not
		t.other++
	case r.err != nil:
		verdict = "FAILED, cannot be tried: " + strings.ReplaceAll(r.err.Error(), "\n", "; ")
		t.failed++
	case r.taken:
		verdict = "FAILED, the attack succeeded: " + r.happened
		t.failed++
	default:
		t.passed++
	}
	fmt.Fprintf(t.out, format, r.Who, r.What, fmt.Sprintf("%.0f ms", r.millis), verdict)
	t.counts()
}

// end prints the counts, the last line of the output.
func (t *table) end() {
	if t.other > 0 {
		fmt.Fprintf(t.out, "%d not tried: their lines say why, and docs/reference/compatibility.md\n", t.other)
	}
	fmt.Fprintf(t.out, "%d passed, %d failed\n", t.passed, t.failed)
}
