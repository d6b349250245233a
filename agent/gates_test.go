package agent

import (
	"errors"
	"testing"
)

// TestFirstClosed: firstClosed returns the reason of the first closed gate, with its error if any.
func TestFirstClosed(t *testing.T) {
	open := gate{true, "open", errors.New("ignored")}
	for want, gates := range map[string][]gate{
		"":            {open, open},
		"first":       {open, {false, "first", nil}, {false, "second", nil}},
		"first: away": {{false, "first", errors.New("away")}, open},
	} {
		if got := firstClosed(gates); got != want {
			t.Errorf("%v: %q, want %q", gates, got, want)
		}
	}
}
