package selftest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"hairpin/report"
	"hairpin/selftest/podside"
)

// carryOut makes a pod for each client, which carries out its checks, and collects the results. The
// pods stay, so that their paths can be explained.
func (t *test) carryOut(ctx context.Context, role string, list []*check) error {
	together := role == "client" // measurements of two pods must not overlap
	by := map[client][]*check{}
	var order []client
	for _, c := range list {
		if by[c.client] == nil {
			order = append(order, c.client)
		}
		by[c.client] = append(by[c.client], c)
	}
	for _, c := range order {
		if c.here {
			continue
		}
		work := podside.Work{}
		if together && !c.host {
			work.Serve = []uint16{answerPort} // of the Service that leads to the client itself
		}
		for _, k := range by[c] {
			work.Checks = append(work.Checks, k.Check)
		}
		if err := t.create(ctx, t.pod(clientName(role, c.node, c.host), role, c.node, c.host, work)); err != nil {
			return err
		}
		if !together {
			if err := t.collect(ctx, role, c, time.Now().Add(startTime), by[c]); err != nil {
				return err
			}
		}
	}
	if !together {
		return nil
	}
	until := time.Now().Add(startTime)
	for _, c := range order {
		if c.here {
			sendHere(ctx, by[c])
		} else if err := t.collect(ctx, role, c, until, by[c]); err != nil {
			return err
		}
	}
	return nil
}

// sendHere carries out checks in this process.
func sendHere(ctx context.Context, list []*check) {
	var g errgroup.Group
	g.SetLimit(podside.AtOnce)
	for i, c := range list {
		g.Go(func() error {
			c.result = c.Run(ctx, i, patience)
			return nil
		})
	}
	_ = g.Wait() // the results have the errors
}

// collect waits for the results of a client's pod, which has to run by a certain time. If it does
// not run, that is a failure of its own.
func (t *test) collect(ctx context.Context, role string, c client, until time.Time, list []*check) error {
	pod := clientName(role, c.node, c.host)
	if _, err := t.running(ctx, pod, until); err != nil {
		return t.recordRun(ctx, pod, c.node, err)
	}
	last := errors.New("it has no results yet")
	for {
		text, err := t.log(ctx, pod)
		var results []podside.Result
		done := false
		if err == nil {
			results, done, err = podside.Results(text, len(list))
		}
		if done {
			for _, r := range results {
				report.PlainStrings(&r)
				list[r.Check].result = r
			}
			return t.recordRun(ctx, pod, c.node, nil)
		}
		if _, why := t.get(ctx, pod); why != nil {
			err = why
		}
		if isFinal(err) {
			return t.recordRun(ctx, pod, c.node, err)
		}
		if err != nil && ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("results of pod %s: %w%s", pod, last, t.warning(ctx, pod))
		case <-time.After(pollTime):
		}
	}
}

// explainFailures explains the paths of checks that failed, some at most: it reads the nodes on
// each path.
func (t *test) explainFailures(ctx context.Context, list []*check) {
	n := 0
	for _, c := range list {
		if c.result.Error == "" || n == t.Explain || ctx.Err() != nil {
			continue
		}
		if n++; n == 1 {
			fmt.Fprintln(t.errw, "explaining failures")
		}
		var out bytes.Buffer
		if err := t.explain(ctx, &out, c.question); err != nil && !errors.Is(err, report.ErrProblems) {
			fmt.Fprintf(&out, "explain: %v\n", err)
		}
		c.explain = out.String()
	}
}

// command returns the command that explains a check.
func (c *check) command() string {
	q := &c.question
	text := fmt.Sprintf("kubectl hairpin explain %s %s --proto %s", q.From, q.To, q.Proto)
	if q.IPFamily != "" {
		text += " --family " + q.IPFamily[len("IPv"):]
	}
	if q.NodePort {
		text += " --node-port --via " + q.Via
	}
	return text + " --live"
}
