package ops

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
)

// TestListen checks that of several processes that listen by one name at once none fails, and one
// gets the requests. The socket of a closed listener is replaced.
func TestListen(t *testing.T) {
	dir := t.TempDir()
	for range 20 {
		const many = 8
		var all [many]net.Listener
		var start sync.WaitGroup
		for i := range all {
			start.Go(func() {
				l, err := ListenUnix(dir, "a.sock")
				if err != nil {
					t.Error(err)
				}
				all[i] = l
			})
		}
		start.Wait()
		if t.Failed() {
			return
		}
		asked := make(chan int, many)
		for i, l := range all {
			go func() {
				if c, err := l.Accept(); err == nil {
					_ = c.Close()
					asked <- i
				}
			}()
		}
		c, err := new(net.Dialer).DialContext(context.Background(), "unix", filepath.Join(dir, "a.sock"))
		if err != nil {
			t.Fatal(err)
		}
		<-asked
		for _, l := range all {
			_ = l.Close()
		}
		_ = c.Close()
		if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) != 1 {
			t.Fatalf("%q: one name is left", files)
		}
	}
}
