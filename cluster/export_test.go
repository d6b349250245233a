package cluster

// Equal exports Frontend.equal to the tests.
func Equal(f, g *Frontend) bool { return f.equal(g) }

// RangesOf exports the accepted ranges of pods, with their nodes.
func RangesOf(v *Vetted) any { return v.ranges.Plain() }
