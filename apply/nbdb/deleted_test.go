package nbdb_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"hairpin/apply/nbdb"
	"hairpin/datapath/nb"
)

// TestDeletedRows: Southbound rows that another program deletes come back, of each table that
// ovn-northd fills and does not watch, and while ovn-northd itself deletes rows.
func TestDeletedRows(t *testing.T) {
	n := node(t)
	target := open(t, n)
	want := rich(t)
	reach(t, target, want)
	sh(t, n, "ovn-nbctl --timeout=20 --wait=sb sync")
	time.Sleep(nbdb.NorthdTime) // later, the rows are not ovn-northd's to delete
	deleted := func(table, which string) {
		t.Helper()
		rows := func() string {
			return strings.TrimSpace(sh(t, n,
				fmt.Sprintf("ovn-sbctl --bare --columns=_uuid list %s | grep -c . || true", table)))
		}
		before, begin := rows(), time.Now()
		if before == "0" {
			t.Errorf("no row in %s", table)
		}
		sh(t, n, fmt.Sprintf("ovn-sbctl --bare --columns=_uuid list %[1]s | grep . | %[2]s | "+
			"xargs -n 500 ovn-sbctl destroy %[1]s", table, which))
		for now := ""; now != before; now = rows() {
			if time.Since(begin) > 30*time.Second {
				t.Fatalf("%s: %s rows, not %s, after %s", table, now, before, which)
			}
		}
		t.Logf("%s: %s rows are back %s after %s", table, before, time.Since(begin).Round(10*time.Millisecond), which)
	}
	for _, table := range []string{"Logical_Flow", "Multicast_Group", "Address_Set", "Static_MAC_Binding",
		"Load_Balancer"} {
		deleted(table, "head -n 1")
		deleted(table, "cat")
	}
	for range 3 {
		for _, s := range []nb.State{nil, want} {
			reach(t, target, s)
			sh(t, n, "ovn-nbctl --timeout=20 --wait=sb sync")
		}
		deleted("Multicast_Group", "cat")
	}
}
