package scale

import (
	"context"
	"errors"
	"time"
)

// lullWindow is the interval of settle.
const lullWindow = 500 * time.Millisecond

// lull detects when daemons are at rest, by their CPU per window. Either of these holds then:
//   - They use less than a tenth of a core per node for a second.
//   - For ten seconds no window was a tenth below the least before, and the least is below half a
//     core per node. With many objects, they use more than a tenth of a core even at rest.
type lull struct {
	nodes        int
	quiet, level int           // number of consecutive windows
	least        time.Duration // least usage of all windows
}

// take takes the usage of all nodes' daemons in a window, and reports whether they are at rest.
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

// core returns the CPU time of one core per node in a window.
func (l *lull) core() time.Duration { return lullWindow * time.Duration(l.nodes) }

// settle waits until the daemons of the real nodes are at rest. It prints their usage if it exceeds
// a tenth of a core per node.
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

// total returns the usage of all daemons of the real nodes.
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
