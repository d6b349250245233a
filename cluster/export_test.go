package cluster

// Equal opens Frontend.equal to the tests.
func Equal(f, g *Frontend) bool { return f.equal(g) }
