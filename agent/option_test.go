package agent_test

import (
	"syscall"
	"testing"

	"hairpin/lab"
)

// replaceSwitch kills ovs-vswitchd and starts another, and waits until the agent has released that.
func replaceSwitch(t *testing.T, n *lab.Node) {
	t.Helper()
	before := mustReport(t, n).Restarts
	noError(t, n.Restart(t.Context(), lab.VSwitchd, syscall.SIGKILL))
	waitRestarted(t, n, before)
}

// restartAgent restarts the agent, and waits until everything is in order.
func restartAgent(t *testing.T, n *lab.Node) {
	t.Helper()
	noError(t, n.Restart(t.Context(), agent, syscall.SIGTERM))
	waitWell(t, n)
}

// agentRestarts restarts the agent under traffic: no connection notices.
func agentRestarts(t *testing.T, n *lab.Node, ways []path) {
	t.Helper()
	o := under(t, ways, func(f traffic) {
		restartAgent(t, n)
		f.flows(more)
	})
	t.Logf("agent restarted: %s", o)
	o.allWell(t)
}

// setting changes an option in settings, which the agent reads when it starts.
func setting(t *testing.T, n *lab.Node, key, word string) {
	t.Helper()
	sh(t, n, `sed -i "s/^`+key+` = .*/`+key+` = `+word+`/" `+settings)
}

// option is setting, and restarts the agent.
func option(t *testing.T, n *lab.Node, key, word string) {
	t.Helper()
	setting(t, n, key, word)
	restartAgent(t, n)
}

// switches is option under traffic, whose new connections do not fail.
func switches(t *testing.T, n *lab.Node, ways []path, key, word string) {
	t.Helper()
	o := underAt(t, tolerant, ways, func(f traffic) {
		option(t, n, key, word)
		f.flows(more)
	})
	t.Logf("switched to %s: %s", word, o)
	if o.failed*50 > o.opened { // a connection that is being made at that moment does
		t.Errorf("switched to %s: new connections failed", word)
	}
}
