package knft

import "context"

// AsOnOldKernel makes the Target treat missing devices as on a kernel before 6.16, which rejects
// chains on them.
func (t *Target) AsOnOldKernel(ctx context.Context) error {
	if err := t.probe(ctx); err != nil || !t.allowsMissing {
		return err
	}
	t.allowsMissing = false
	return t.watchDevices()
}
