package ofctl

// Watching tells that every bridge of ours that was seen is watched: what happens from now on is
// told.
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
