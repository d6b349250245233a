package inside_test

import (
	"runtime"
	"testing"
	"time"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
)

// A function that ends its goroutine, as t.Fatal does, is an error: Do does not wait forever.
func TestGoexit(t *testing.T) {
	path, ended := insidetest.NetNS(t), make(chan error, 1)
	go func() { ended <- inside.Do(path, func() error { runtime.Goexit(); return nil }) }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("no error")
		}
	case <-time.After(10 * time.Second):
		t.Error("Do still waits")
	}
}
