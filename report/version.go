package report

import (
	"errors"
	"runtime/debug"
)

// ErrNotWell is what Status, Diff and Plan return when they have printed what is not well.
var ErrNotWell = errors.New("not all is well")

// release and image are set by the linker when a release is built.
var (
	release string
	image   = "hairpin:dev" // as `make image-oci` names it
)

// Image is the container image that belongs to this program.
func Image() string { return image }

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
