package scale

import (
	"context"
	"fmt"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/lab"
)

// knocks makes a pod of each real node send to a pod of another node every 2 ms, until end is
// called. Each packet is a new connection, because OVN keeps its decision for a connection.
func (w *world) knocks(ctx context.Context, n node) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	to := &net.UDPAddr{IP: n.pod(1).AsSlice(), Port: 9}
	go func() {
		defer close(done)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			for _, p := range w.senders {
				_ = lab.Do(p, func() error { // lost packets are noticed elsewhere
					c, err := net.DialUDP("udp4", nil, to)
					if err != nil {
						return err
					}
					_, err = c.Write([]byte("knock"))
					_ = c.Close()
					return err
				})
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// reached waits until packets from pods of both real nodes reach a node through its tunnel. It
// returns the time of the later one of the two first packets.
func (w *world) reached(ctx context.Context, n node, timeout time.Duration) (at time.Time, err error) {
	w.others.forget()
	defer w.knocks(ctx, n)()
	to := n.addresses()[0].Addr()
	for end := time.Now().Add(timeout); ; {
		missing := ""
		for _, x := range w.nodes {
			t := w.others.last(x.Addresses()[0].Addr(), to)
			if t.IsZero() {
				missing = x.Name()
			}
			if t.After(at) {
				at = t
			}
		}
		if missing == "" {
			return at, nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return at, fmt.Errorf("no packet of %s got to %s within %s", missing, n.name(), timeout)
		}
		time.Sleep(time.Millisecond)
	}
}

// left waits until no more packets reach a deleted node, and returns the time of the last one.
func (w *world) left(ctx context.Context, n node, timeout time.Duration) (at time.Time, err error) {
	const silence = 500 * time.Millisecond
	defer w.knocks(ctx, n)()
	to, begin := n.addresses()[0].Addr(), time.Now()
	for end := begin.Add(timeout); ; time.Sleep(10 * time.Millisecond) {
		at = begin
		for _, x := range w.nodes {
			if t := w.others.last(x.Addresses()[0].Addr(), to); t.After(at) {
				at = t
			}
		}
		if time.Since(at) > silence {
			return at, nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return at, fmt.Errorf("packets still get to %s, %s after it was deleted", n.name(), timeout)
		}
	}
}

func (w *world) removeOther(ctx context.Context, n node) error {
	now := int64(0)
	if err := w.client.CoreV1().Nodes().Delete(ctx, n.name(),
		metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		return fmt.Errorf("delete Node %s: %w", n.name(), err)
	}
	return nil
}

// membership measures nodes that join and leave.
func (w *world) membership(ctx context.Context) error {
	for _, m := range []struct {
		what   string
		change func(context.Context, node) error
		seen   func(context.Context, node, time.Duration) (time.Time, error)
	}{{"a node joins", w.makeOther, w.reached}, {"a node leaves", w.removeOther, w.left}} {
		var took, pauses []time.Duration
		for i := range w.opt.Rounds {
			n := node(w.size.nodes + 1 + i)
			begin, pause := time.Now(), make(chan time.Duration, 1)
			if err := m.change(ctx, n); err != nil {
				return err
			}
			stop := make(chan struct{})
			failed := w.longestChange(ctx, stop, pause)
			at, err := m.seen(ctx, n, w.patience(10*time.Second))
			close(stop)
			pauses = append(pauses, <-pause)
			if err := <-failed; err != nil {
				return err
			}
			if err != nil {
				return err
			}
			took = append(took, at.Sub(begin))
			if err := w.settle(ctx); err != nil {
				return err
			}
		}
		w.table.Add(m.what+": API write to the packet on both real nodes, median", "ms", quantile(took, 0.5))
		w.table.Add(m.what+": the same, worst", "ms", quantile(took, 1))
		w.table.Add(m.what+": slowest change of a Service meanwhile, worst", "ms", quantile(pauses, 1))
	}
	return w.membershipCPU(ctx)
}

// membershipCPU measures the CPU that a joining and a leaving node cost the first real node, beyond
// that at rest. There are more of them than rounds, one by one, because each adds to the agent's
// garbage collection.
func (w *world) membershipCPU(ctx context.Context) error {
	n := 5 * w.opt.Rounds
	for _, m := range []struct {
		what   string
		change func(context.Context, node) error
	}{{"a node joins", w.makeOther}, {"a node leaves", w.removeOther}} {
		idle, window, err := w.during(func() error { return w.rest(ctx) })
		if err != nil {
			return err
		}
		used, took, err := w.during(func() error {
			for i := range n {
				if err := m.change(ctx, node(w.size.nodes+1+i)); err != nil {
					return err
				}
				if err := w.settle(ctx); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		var total time.Duration
		for _, name := range daemons() {
			each := (used[name] - time.Duration(float64(idle[name])*took.Seconds()/window.Seconds())) / time.Duration(n)
			w.table.Add(moreCPU(m.what, name), "ms", millis(each))
			total += each
		}
		w.table.Add(moreCPU(m.what, "all"), "ms", millis(total))
	}
	return nil
}

// moreCPU returns the name of a row for a daemon's extra CPU.
func moreCPU(what, name string) string { return what + ": CPU of " + name + " beyond that at rest" }

// during returns the CPU that each daemon of the first real node uses during do, and how long do
// takes.
func (w *world) during(do func() error) (used map[string]time.Duration, took time.Duration, err error) {
	begin := time.Now()
	before, err := w.usage(w.nodes[0])
	if err != nil {
		return nil, 0, err
	}
	if err := do(); err != nil {
		return nil, 0, err
	}
	after, err := w.usage(w.nodes[0])
	used = map[string]time.Duration{}
	for name := range after {
		used[name] = after[name].CPU - before[name].CPU
	}
	return used, time.Since(begin), err
}

// longestChange changes a Service repeatedly until stop is closed, and reports the time of the
// slowest change.
func (w *world) longestChange(ctx context.Context, stop <-chan struct{},
	slowest chan<- time.Duration) (failed <-chan error) {
	result := make(chan error, 1)
	go func() {
		var longest time.Duration
		var err error
		for k := 0; err == nil; k++ {
			var took time.Duration
			if took, _, err = w.flip(ctx); took > longest {
				longest = took
			}
			select {
			case <-stop:
				slowest <- longest
				result <- err
				return
			default:
			}
		}
		<-stop
		slowest <- longest
		result <- err
	}()
	return result
}
