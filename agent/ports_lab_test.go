package agent_test

import "testing"

// TestPortsDevices: devices of our ports that another program deletes, renames or moves to another
// network namespace come back with all that they had.
func TestPortsDevices(t *testing.T) {
	_, n := alone(t)
	giveManifests(t, n)
	start(t, n)
	waitServes(t, n)
	alterEach(t, n, deviceAlterations(n))
}
