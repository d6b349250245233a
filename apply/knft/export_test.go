package knft

// AsOnOldKernel makes the Target treat missing devices as on a kernel before 6.16, which refuses chains on them.
func (t *Target) AsOnOldKernel() error {
	t.byName = false
	return t.watchDevices()
}
