package plan

import (
	"maps"

	"hairpin/cluster"
)

// Numbers are what Services have now.
func (p *Planner) Numbers() Numbers { return maps.Clone(p.held.numbers) }

// Numbered is the number that a Frontend tries after i others.
func Numbered(f *cluster.Frontend, i int) uint16 { return numbered(f, i) }
