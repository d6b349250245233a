package scale

import (
	"context"
	"errors"
	"time"
)

// lullWindow is how often settle looks.
const lullWindow = 500 * time.Millisecond

// lull finds out when daemons are at rest, by what they use in one window after the other. They are
// when they use less than a tenth of a core a node for a second. With so many objects that they use
// more than that by themselves they never do: then they are when it falls no more, which is when
// for ten seconds no window had a tenth less than the least before, and that least is below half a
// core a node. What still works hard has more.
type lull struct {
	nodes        int
	quiet, level int           // how many windows in a row were so
	least        time.Duration // of all windows
}

// take takes what the daemons of all nodes used in a window, and reports whether they are at rest.
func (l *lull) take(used time.Duration) bool {
	const quiet, steady = 2, int(10 * time.Second / lullWindow)
	if l.quiet++; used > l.core()/10 {
		l.quiet = 0
	}
	if l.level++; l.least == 0 || used < l.least*9/10 {
		l.level, l.least = 0, used
	}
	return l.quiet >= quiet || l.level >= steady && l.least < l.core()/2
}

// core is what one core a node is in a window.
func (l *lull) core() time.Duration { return lullWindow * time.Duration(l.nodes) }

// settle waits until the daemons of the real nodes are at rest. It says when that is not rest as it
// should be.
func (w *world) settle(ctx context.Context) error {
	l := lull{nodes: len(w.nodes)}
	last, err := w.total()
	if err != nil {
		return err
	}
	for end := time.Now().Add(w.patience(time.Minute)); ; {
		time.Sleep(lullWindow)
		if ctx.Err() != nil || time.Now().After(end) {
			return errors.New("the daemons do not come to rest")
		}
		now, err := w.total()
		if err != nil {
			return err
		}
		if l.take(now - last) {
			break
		}
		last = now
	}
	if l.least > l.core()/10 {
		w.say("%d nodes: the daemons of both real nodes use %.0f %% of a core by themselves", w.size.nodes,
			100*l.least.Seconds()/lullWindow.Seconds())
	}
	return nil
}

// total is what all daemons of the real nodes have used.
func (w *world) total() (sum time.Duration, err error) {
	for _, n := range w.nodes {
		used, err := w.usage(n)
		if err != nil {
			return 0, err
		}
		for _, u := range used {
			sum += u.CPU
		}
	}
	return sum, nil
}
