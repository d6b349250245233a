package report

import (
	"errors"
	"runtime/debug"
)

// ErrNotWell is what Status, Diff and Plan return when they have printed what is not well.
var ErrNotWell = errors.New("not all is well")

// release is set by the linker when a release is built.
var release string

// Version tells what was built: the release, or what the build information of the binary says.
func Version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}
