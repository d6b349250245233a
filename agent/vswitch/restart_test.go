package vswitch

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// TestNetworkErrorIsLoggedOnce: what is tried ten times a second is logged when its error changes.
func TestNetworkErrorIsLoggedOnce(t *testing.T) {
	var text strings.Builder
	v := &Switch{log: slog.New(slog.NewTextHandler(&text, nil))}
	for i, x := range []struct {
		err  error
		want int // lines
	}{
		{errors.New("a"), 1}, {errors.New("a"), 1}, {errors.New("b"), 2}, {nil, 2}, {errors.New("b"), 3},
	} {
		v.networkKept(x.err)
		if got := strings.Count(text.String(), "\n"); got != x.want {
			t.Errorf("after call %d: %d lines, not %d: %s", i, got, x.want, text.String())
		}
	}
}
