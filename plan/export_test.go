package plan

import "maps"

// Numbers are what Services have now.
func (p *Planner) Numbers() Numbers { return maps.Clone(p.numbers) }
