package agent_test

import "testing"

// TestPortsDevices: devices of Hairpin's ports that another program deletes, renames or moves to
// another network namespace are restored with their configuration.
func TestPortsDevices(t *testing.T) {
	t.Parallel()
	_, n := alone(t)
	giveManifests(t, n)
	start(t, n)
	waitServes(t, n)
	alterEach(t, n, deviceAlterations(n))
}
