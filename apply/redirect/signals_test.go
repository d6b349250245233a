package redirect_test

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	program "hairpin/apply/redirect"
)

// TestLoadDespiteSignals checks that a signal during the verification of a program costs only
// another try. The kernel then returns EAGAIN. Go's runtime sends signals to preempt goroutines.
func TestLoadDespiteSignals(t *testing.T) {
	if err := program.Conntrack(); err != nil {
		t.Skip(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread, stop, stopped := unix.Gettid(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for pause := time.Duration(0); ; pause = (pause + 170*time.Microsecond) % (5 * time.Millisecond) {
			select {
			case <-stop:
				return
			case <-time.After(pause):
				_ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	for i := range 20 {
		if err := program.Conntrack(); err != nil {
			t.Fatalf("load %d: %v", i, err)
		}
	}
}
