package progress

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

// still returns a Board that only the test redraws.
func still(out *bytes.Buffer) *Board {
	b := New(out)
	b.ticker.Stop()
	return b
}

// TestTerminal: on a terminal, one line shows all long steps; what is written appears above it.
func TestTerminal(t *testing.T) {
	var out bytes.Buffer
	b := still(&out)
	b.width = func() int { return 60 }
	programs, image := b.Begin("programs"), b.Begin("image")
	programs.Say("%d packages compiled", 3)
	b.show(b.begun.Add(time.Second))
	if out.Len() > 0 {
		t.Errorf("after a second it shows %q", out.String())
	}
	b.show(b.begun.Add(3 * time.Second))
	if got, want := out.String(), "   3.0 s  programs: 3 packages compiled | image"; got != want {
		t.Errorf("the line is %q, not %q", got, want)
	}
	out.Reset()
	fmt.Fprintln(b, "a result")
	if got, want := out.String(), "\r\x1b[Ka result\n"; got != want {
		t.Errorf("written was %q, not %q", got, want)
	}
	out.Reset()
	programs.Say("%s", strings.Repeat("long ", 20))
	b.show(b.begun.Add(4 * time.Second))
	if n := out.Len(); n != 59 {
		t.Errorf("on a terminal of 60 columns the line has %d: %q", n, out.String())
	}
	programs.End()
	image.End()
	b.Close()
	if got := out.String(); !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("at the end there is %q", got)
	}
}

// TestPlainLines: elsewhere, each long step prints a line periodically, and one when it has ended.
func TestPlainLines(t *testing.T) {
	var out bytes.Buffer
	b := still(&out)
	s := b.Begin("image")
	for n := range 30 {
		s.Say("%d of 30", n)
		b.show(s.begun.Add(time.Duration(n) * time.Second))
	}
	want := "   2.0 s  image: 2 of 30\n  12.0 s  image: 12 of 30\n  22.0 s  image: 22 of 30\n"
	if got := out.String(); got != want {
		t.Errorf("the lines are\n%s", got)
	}
	out.Reset()
	s.begun = s.begun.Add(-time.Minute)
	s.End()
	if got := out.String(); !strings.HasSuffix(got, "image: done in 60 s\n") {
		t.Errorf("the last line is %q", got)
	}
	b.Close()
}

func TestLines(t *testing.T) {
	var got []string
	l := &Lines{Each: func(line string) { got = append(got, line) }}
	for _, part := range []string{"on", "e\ntwo\nth", "ree\n"} {
		if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	if strings.Join(got, " ") != "one two three" {
		t.Errorf("the lines are %q", got)
	}
}
