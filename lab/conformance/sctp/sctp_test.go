package sctp

import (
	"syscall"
	"testing"
)

// TestExchange sends as agnhost's connect and porter do.
func TestExchange(t *testing.T) {
	if fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, syscall.IPPROTO_SCTP); err == nil {
		_ = syscall.Close(fd)
		t.Skip("the kernel has SCTP, and answers itself")
	}
	addr, err := ResolveSCTPAddr("sctp", "127.0.0.1:9003")
	if err != nil {
		t.Fatal(err)
	}
	l, err := ListenSCTP("sctp", &SCTPAddr{Port: addr.Port})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.AcceptSCTP()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("foo"))
			_ = c.Close()
		}
	}()
	for range 3 {
		c, err := DialSCTP("sctp", nil, addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("hostname\n")); err != nil {
			t.Error(err)
		}
		buf := make([]byte, 16)
		if n, err := c.Read(buf); err != nil || string(buf[:n]) != "foo" {
			t.Errorf("read %q, %v; want foo", buf[:n], err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
