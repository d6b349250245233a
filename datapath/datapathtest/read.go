// Package datapathtest reads States from files beside tests.
package datapathtest

import (
	"os"
	"testing"

	"hairpin/datapath"
)

// Read returns a State, or a part of one, from a file in the form of datapath.Encode.
func Read[S any](t testing.TB, path string) (s S) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = datapath.Decode(text, &s)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return s
}
