package nbdb

import (
	"context"
	"path/filepath"
	"strings"

	"hairpin/apply/unixctl"
)

// Stats are figures of the node's OVN.
type Stats struct {
	// Connected is whether a client is connected to a database, by client and database: agent,
	// ovn-controller and ovn-northd, northbound and southbound. Of OVN's daemons it is false as
	// well if they do not answer.
	Connected map[[2]string]bool
	// Cells are the values that the server of a database holds, by database. The size of its file
	// follows from them. A server that does not answer is missing.
	Cells map[string]uint64
}

// Stats reads figures of OVN's daemons through their control sockets in dir.
func (t *Target) Stats(ctx context.Context, dir string) Stats {
	connected := func(daemon, command string) bool {
		text, err := unixctl.Ask(ctx, dir, daemon, command)
		return err == nil && strings.TrimSpace(text) == "connected"
	}
	s := Stats{Cells: map[string]uint64{}, Connected: map[[2]string]bool{
		{"agent", "northbound"}:          t.nb.Connected(),
		{"agent", "southbound"}:          t.sb.Connected(),
		{"ovn-controller", "southbound"}: connected("ovn-controller", "connection-status"),
		{"ovn-northd", "northbound"}:     connected("ovn-northd", "nb-connection-status"),
		{"ovn-northd", "southbound"}:     connected("ovn-northd", "sb-connection-status"),
	}}
	for database, socket := range map[string]string{"northbound": "ovnnb_db.ctl", "southbound": "ovnsb_db.ctl"} {
		if text, err := unixctl.Call(ctx, filepath.Join(dir, socket), "memory/show"); err == nil {
			s.Cells[database] = unixctl.Memory(text)["cells"]
		}
	}
	return s
}
