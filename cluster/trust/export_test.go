package trust

// RangesOf exports the accepted ranges of pods, with their nodes.
func RangesOf(v *Vetted) any { return v.ranges.Plain() }
