package targets

import (
	"fmt"
	"log/slog"
	"path/filepath"

	"hairpin/config"
	"hairpin/ovsdb"
	"hairpin/retry"
)

// OpenOVS mirrors the tables of the Open vSwitch database that the agent reads itself. It does not
// wait for the database.
func OpenOVS(c config.Config, log *slog.Logger) (*ovsdb.Client, error) {
	ovs, err := ovsdb.Open(ovsdb.Config{
		Endpoint: "unix:" + filepath.Join(c.Process.OVSRunDir, "db.sock"),
		Database: "Open_vSwitch",
		Tables: []ovsdb.Table{ovsdb.Mirror[ovsdb.OpenVSwitch](), ovsdb.Mirror[ovsdb.Bridge](),
			ovsdb.Mirror[ovsdb.Port](), ovsdb.Mirror[ovsdb.Interface]()},
		Logger:     log,
		MaxBackoff: retry.Last / 5, // a socket of this machine: an attempt costs nothing
	})
	if err != nil {
		return nil, fmt.Errorf("Open vSwitch: %w", err)
	}
	return ovs, nil
}
