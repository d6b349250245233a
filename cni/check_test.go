package cni_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"hairpin/cluster"
	"hairpin/lab"
)

// checked asserts that CHECK finds no fault. It repeats a CHECK that ends with "try again later".
func (s *sandbox) checked() {
	s.w.t.Helper()
	eventually(s.w.t, 30*time.Second, "CHECK of "+s.pod, func() error {
		o := s.call("CHECK")
		if o.code() != types.ErrTryAgainLater {
			must(s.w.t, o.err)
		}
		return o.err
	})
}

// TestCheckAfterStart: while the agent does not know everything about pods, because it has just
// started or its Node was deleted, CHECK finds the faults of a pod, and only real ones.
func TestCheckAfterStart(t *testing.T) { engines(t, checkAfterStart) }

func checkAfterStart(t *testing.T, engine string) {
	w, n := singleWith(t, engine)
	s := residents(t, w, n, "one")[0]
	finds := func() {
		t.Helper()
		sh(t, n, "ip -n "+s.netns()+" route del default")
		s.call("CHECK").refused(t, 100, "lost the default route")
		sh(t, n, "ip -n "+s.netns()+" route add default via 10.244.1.1")
	}

	must(t, os.Remove(filepath.Join(w.dir, "node-a.yaml")))
	eventually(t, 20*time.Second, "the agent notices that the Node is gone", func() error {
		o := s.call("CHECK")
		if o.err == nil {
			return errors.New("CHECK succeeds")
		}
		o.refused(t, types.ErrTryAgainLater, "the cluster has no Node node-a")
		return nil
	})
	kill(t, n, agent)
	w.start(n)
	s.call("CHECK").refused(t, types.ErrTryAgainLater, "the cluster has no Node node-a")
	finds()
	w.manifest("node-a.yaml", nodeManifest(1, usualCIDRs(1)))
	s.checked()

	kill(t, n, agent)
	freeze(t, n, lab.Northd) // so that the agent does not learn whether OVN's flows lead to the pod
	w.start(n)
	w.ready(n)
	if engine == cluster.EngineOpenFlow {
		s.call("CHECK").refused(t, types.ErrTryAgainLater, "it is not known yet")
	}
	finds()
	thaw(t, n, lab.Northd)
	s.checked()
}
