package plan

import "maps"

// ProxyPorts are the proxy ports that Services have now.
func (p *Planner) ProxyPorts() ProxyPorts { return maps.Clone(p.kept.Ports) }
