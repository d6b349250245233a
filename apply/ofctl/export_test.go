package ofctl

// Watching reports whether all known bridges are monitored from now on.
func (t *Target) Watching() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range t.bridges {
		if !b.monitor.isUp() {
			return false
		}
	}
	return true
}
