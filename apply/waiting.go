package apply

import "strings"

// Waiting is the error of an Apply that made every change except those that need devices which do
// not exist yet. The Target's Changed signals when one of them appears.
type Waiting struct {
	Devices []string // sorted
}

// Error names the devices.
func (w *Waiting) Error() string { return "waiting for device " + strings.Join(w.Devices, ", ") }
