package report

import (
	"errors"
	"runtime/debug"
)

// ErrProblems is the error of commands that have printed problems.
var ErrProblems = errors.New("there are problems")

// The linker sets release and image in a release build.
var (
	release string
	image   = "hairpin:dev" // as `make image-oci` names it
)

// Image returns the container image that has this program.
func Image() string { return image }

// Version returns the release, or the version in the binary's build information.
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
