package flow

import "slices"

// Ports returns the names of the ports that the flow matches or outputs to, without LOCAL,
// duplicates included.
func (f *Flow) Ports() []string {
	var names []string
	if f.Match.InPort != "" && f.Match.InPort != Local {
		names = append(names, f.Match.InPort)
	}
	for _, a := range f.Actions {
		if o, ok := a.(Output); ok && o.Port != Local {
			names = append(names, o.Port)
		}
	}
	return names
}

// Uses reports whether the flow matches one of the ports, or outputs to one.
func (f *Flow) Uses(ports map[string]bool) bool {
	return ports[f.Match.InPort] || slices.ContainsFunc(f.Actions,
		func(a Action) bool { o, ok := a.(Output); return ok && ports[o.Port] })
}

// WithPorts returns the flow with its port names replaced by other names, or numbers, except LOCAL.
// It returns a flow without ports unchanged.
func (f *Flow) WithPorts(rename func(string) string) *Flow {
	if len(f.Ports()) == 0 {
		return f
	}
	g := *f
	if f.Match.InPort != "" && f.Match.InPort != Local {
		g.Match.InPort = rename(f.Match.InPort)
	}
	g.Actions = slices.Clone(f.Actions)
	for i, a := range g.Actions {
		if o, ok := a.(Output); ok && o.Port != Local {
			g.Actions[i] = Output{rename(o.Port)}
		}
	}
	return &g
}
