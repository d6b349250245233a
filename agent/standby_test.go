package agent_test

import (
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/lab"
)

// second is another agent of a node.
const second = "second"

// TestStandby: a second agent of a node changes nothing until the first has ended, and then only
// the differences.
func TestStandby(t *testing.T) {
	t.Parallel()
	_, n := alone(t)
	ctx := t.Context()
	giveManifests(t, n)
	start(t, n)
	waitWell(t, n)
	atRest(t, n)
	before := lines(sh(t, n, everything))
	noError(t, n.StartDaemon(ctx, second, "/usr/local/bin/hairpin", "node", "--config-file="+settings))
	log := func() string {
		text, err := os.ReadFile(n.LogFile(second))
		noError(t, err)
		return string(text)
	}
	eventually(t, 20*time.Second, "the second agent stands by", func() (bool, string) {
		return strings.Contains(log(), "standing by"), log()
	})
	ready := func() (bool, string) {
		code, _, body := curl(ctx, n.Host, "http://127.0.0.1:10256/readyz")
		return code == http.StatusOK, body
	}
	if ok, body := ready(); !ok {
		t.Errorf("while another stands by, the first is not ready: %s", body)
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		ends, waits := agent, second
		if sig == syscall.SIGKILL {
			ends, waits = second, agent
			noError(t, n.Start(ctx, agent))
			eventually(t, 20*time.Second, "the first stands by now", func() (bool, string) {
				text := logOf(t, n)
				return strings.Contains(text, "standing by"), text
			})
		}
		begin := time.Now()
		noError(t, n.Kill(ctx, ends, sig))
		gone := time.Since(begin)
		eventually(t, 20*time.Second, "the other agent answers", func() (bool, string) {
			_, err := reportOf(ctx, n)
			return err == nil, ""
		})
		answered := time.Since(begin)
		waitWell(t, n)
		well := time.Since(begin)
		eventually(t, 20*time.Second, "the other agent is ready", ready)
		t.Logf("%v to %s: it ended after %d ms; %s answered after %d ms, and all was well after %d ms", sig, ends,
			gone.Milliseconds(), waits, answered.Milliseconds(), well.Milliseconds())
		unchanged(t, n, before)
	}
	if c := strings.Count(log(), "standing by"); c != 1 {
		t.Errorf("said %d times that it stands by", c)
	}
}

// unchanged checks that the agent has read and written nothing.
func unchanged(t *testing.T, n *lab.Node, before []string) {
	t.Helper()
	atRest(t, n)
	for _, part := range mustReport(t, n).Parts {
		if part.Reads == 0 || part.Applies != 0 || part.Written != 0 || part.Drift != 0 || part.Errors != 0 {
			t.Errorf("%+v", part)
		}
	}
	after := lines(sh(t, n, everything))
	t.Logf("%d lines compared", len(after))
	for _, l := range difference(before, after) {
		t.Error(l)
	}
}
