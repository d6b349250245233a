package demo

import (
	"fmt"
	"io"
	"strings"
)

const rowFormat = "%-8s %-14s %-16s %-5s %-17s %-17s %7s  %s\n"

// table prints results as they come.
type table struct {
	out            io.Writer
	begun          bool
	passed, failed int
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
	fmt.Fprintf(t.out, rowFormat, r.From, r.To, r.Path, r.Protocol, got, r.Want, fmt.Sprintf("%.1f ms", r.Millis), verdict)
}

// end prints the count, the last line of all.
func (t *table) end() { fmt.Fprintf(t.out, "%d passed, %d failed\n", t.passed, t.failed) }
