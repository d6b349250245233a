package report

import (
	"errors"
	"runtime/debug"
)

// ErrNotWell is what Status, Diff and Plan return when they have printed what is not well.
var ErrNotWell = errors.New("not all is well")

// Version tells what was built, from the build information of the binary.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}
