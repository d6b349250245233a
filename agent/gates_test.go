package agent

import (
	"errors"
	"testing"
)

// TestFirstClosed: the first closed gate gives the reason, with its error if it has one.
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
