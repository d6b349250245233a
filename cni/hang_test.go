package cni_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/lab"
)

// TestOpenVSwitchHangs: an ADD ends in good time while the database of Open vSwitch does not reply,
// and leaves nothing behind when it replies again. The runtime's next ADD succeeds.
func TestOpenVSwitchHangs(t *testing.T) { engines(t, openVSwitchHangs) }

func openVSwitchHangs(t *testing.T, engine string) {
	w, n := singleWith(t, engine)
	pods := residents(t, w, n, "before")
	s := w.sandbox(n, "meanwhile")
	must(t, n.Signal(lab.OVSDB, syscall.SIGSTOP))
	goesOn := func() { must(t, n.Signal(lab.OVSDB, syscall.SIGCONT)) }
	t.Cleanup(goesOn)
	began := time.Now()
	s.call("ADD").refused(t, 11, "no answer") // try again later
	t.Logf("refused after %v", time.Since(began).Round(time.Millisecond))
	goesOn()
	eventually(t, 20*time.Second, "nothing is left of it", func() error {
		for _, i := range interfaces(t, n) {
			if strings.Contains(i.ExternalIDs["sandbox"], s.id) {
				return errors.New("its row is there")
			}
		}
		if known := knownToOVN(t, n); !slices.Equal(known, []string{pods[0].ips[0].String()}) {
			return fmt.Errorf("OVN has the addresses %v", known)
		}
		return nil
	})
	stillReachable(t, n, pods)
	serve(t, s.path())
	s.add()
	s.reachable()
	consistent(t, n, append(pods, s)...)
}
