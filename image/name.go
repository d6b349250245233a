package image

import (
	"path"
	"strings"
)

// withoutTag returns the repository of an image's name.
func withoutTag(name string) string { return strings.TrimSuffix(name, ":"+tag(name)) }

// tag returns the tag of an image's name.
func tag(name string) string {
	if _, t, ok := strings.Cut(path.Base(name), ":"); ok {
		return t
	}
	return "latest"
}

// reference returns the full name of an image, as containerd stores it.
func reference(name string) string {
	if name == withoutTag(name) {
		name += ":" + tag(name)
	}
	first, _, more := strings.Cut(name, "/")
	switch {
	case !more:
		return "docker.io/library/" + name
	case !strings.ContainsAny(first, ".:") && first != "localhost":
		return "docker.io/" + name
	}
	return name
}
