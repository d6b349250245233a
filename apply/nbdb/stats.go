package nbdb

import (
	"context"
	"path/filepath"
	"strings"
	"sync"

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

// Stats reads figures of OVN's daemons through their control sockets.
func (t *Target) Stats(ctx context.Context) Stats {
	s := Stats{Cells: map[string]uint64{}, Connected: map[[2]string]bool{
		{"agent", "northbound"}: t.nb.Connected(),
		{"agent", "southbound"}: t.sb.Connected(),
	}}
	var mu sync.Mutex
	var tasks sync.WaitGroup // a daemon that hangs delays no other
	for client, command := range map[[2]string]string{
		{controller, "southbound"}: "connection-status",
		{northd, "northbound"}:     "nb-connection-status",
		{northd, "southbound"}:     "sb-connection-status",
	} {
		tasks.Go(func() {
			text, err := unixctl.Ask(ctx, t.cfg.RunDir, client[0], command)
			mu.Lock()
			defer mu.Unlock()
			s.Connected[client] = err == nil && strings.TrimSpace(text) == "connected"
		})
	}
	for database, socket := range map[string]string{"northbound": "ovnnb_db.ctl", "southbound": "ovnsb_db.ctl"} {
		tasks.Go(func() {
			text, err := unixctl.Call(ctx, filepath.Join(t.cfg.RunDir, socket), "memory/show")
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				s.Cells[database] = unixctl.Memory(text)["cells"]
			}
		})
	}
	tasks.Wait()
	return s
}
