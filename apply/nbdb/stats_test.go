package nbdb_test

import (
	"syscall"
	"testing"
	"time"

	"hairpin/lab"
)

// TestStats checks the connections and sizes of a running OVN, and those without ovn-northd.
func TestStats(t *testing.T) {
	n := node(t)
	target := open(t, n)
	northd := [2]string{"ovn-northd", "southbound"}
	until := func(connected bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			s := target.Stats(ctx(t))
			if s.Connected[northd] == connected {
				if !s.Connected[[2]string{"agent", "northbound"}] ||
					s.Connected[[2]string{"ovn-controller", "southbound"}] ||
					s.Cells["northbound"] == 0 || s.Cells["southbound"] == 0 {
					t.Errorf("%+v", s)
				}
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%+v", s)
			}
		}
	}
	until(true)
	if err := n.Kill(t.Context(), lab.Northd, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(false)
}
