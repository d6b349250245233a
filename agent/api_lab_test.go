package agent_test

import "testing"

// TestAPI runs, on one lab with an API server, tests in which no node fails and no address moves.
func TestAPI(t *testing.T) {
	t.Parallel()
	g := startEgress(t, "")
	t.Run("a tenant asks for addresses", func(t *testing.T) { tenantAsks(t, g) })
	t.Run("addresses of nodes", func(t *testing.T) { nodeAddresses(t, g) })
	t.Run("annotations come back", func(t *testing.T) { annotationsComeBack(t, g) })
}
