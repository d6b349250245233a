// Package progress shows the progress of long steps: what is done, and what is left. On a terminal
// it redraws one line below all other output; elsewhere it prints plain lines.
package progress

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	redraw = 200 * time.Millisecond // on a terminal
	repeat = 10 * time.Second       // elsewhere
	// long is how long a step takes before it is shown.
	long = 2 * time.Second
)

// Board shows steps of work, several at once. What is written to it appears above them.
type Board struct {
	out    io.Writer
	width  func() int // of the terminal; nil = no terminal
	ticker *time.Ticker
	ended  chan struct{}

	mu    sync.Mutex
	begun time.Time
	steps []*Step
	drawn bool // the line is on the terminal
}

// Step is a piece of work.
type Step struct {
	board *Board
	name  string
	begun time.Time
	text  string
	shown time.Time
}

// New returns a Board on out, which may be a terminal.
func New(out io.Writer) *Board {
	b := &Board{out: out, begun: time.Now(), ended: make(chan struct{})}
	if f, ok := out.(*os.File); ok {
		if _, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			b.width = func() int {
				size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
				if err != nil || size.Col == 0 {
					return 80
				}
				return int(size.Col)
			}
		}
	}
	b.ticker = time.NewTicker(redraw)
	go func() {
		for {
			select {
			case <-b.ended:
				return
			case now := <-b.ticker.C:
				b.show(now)
			}
		}
	}()
	return b
}

// Close ends the line.
func (b *Board) Close() {
	b.ticker.Stop()
	close(b.ended)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clear()
}

// Write writes whole lines.
func (b *Board) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clear()
	return b.out.Write(p)
}

// Begin begins a step.
func (b *Board) Begin(name string) *Step {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &Step{board: b, name: name, begun: time.Now()}
	s.shown = s.begun.Add(long - repeat)
	b.steps = append(b.steps, s)
	return s
}

// Say sets the text of the step: what is done, and what is left.
func (s *Step) Say(format string, args ...any) {
	s.board.mu.Lock()
	defer s.board.mu.Unlock()
	s.text = fmt.Sprintf(format, args...)
}

// End ends the step.
func (s *Step) End() {
	b, now := s.board, time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clear()
	b.steps = slices.DeleteFunc(b.steps, func(x *Step) bool { return x == s })
	if took := now.Sub(s.begun); took >= long {
		fmt.Fprintf(b.out, "%6.1f s  %s: done in %.0f s\n", now.Sub(b.begun).Seconds(), s.name, took.Seconds())
	}
}

// Each runs a step; do reports its progress to the Step.
func (b *Board) Each(name string, do func(*Step) error) error {
	s := b.Begin(name)
	defer s.End()
	return do(s)
}

func (s *Step) line() string {
	if s.text == "" {
		return s.name
	}
	return s.name + ": " + s.text
}

func (b *Board) show(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []string
	for _, s := range b.steps {
		switch {
		case now.Sub(s.begun) < long:
		case b.width != nil:
			list = append(list, s.line())
		case now.Sub(s.shown) >= repeat:
			s.shown = now
			fmt.Fprintf(b.out, "%6.1f s  %s\n", now.Sub(b.begun).Seconds(), s.line())
		}
	}
	if b.width == nil {
		return
	}
	b.clear()
	if len(list) == 0 {
		return
	}
	line := []rune(fmt.Sprintf("%6.1f s  %s", now.Sub(b.begun).Seconds(), strings.Join(list, " | ")))
	fmt.Fprint(b.out, string(line[:min(len(line), b.width()-1)]))
	b.drawn = true
}

// clear removes the line.
func (b *Board) clear() {
	if b.drawn {
		fmt.Fprint(b.out, "\r\x1b[K")
		b.drawn = false
	}
}

// Lines calls a function for each line that a command writes.
type Lines struct {
	Each func(line string)
	part []byte
}

func (l *Lines) Write(p []byte) (int, error) {
	l.part = append(l.part, p...)
	for {
		line, rest, whole := bytes.Cut(l.part, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		l.Each(string(line))
		l.part = rest
	}
}
