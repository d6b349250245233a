package probe

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// LoadConfig describes a load without a rate limit.
type LoadConfig struct {
	To netip.AddrPort
	// workers that open TCP connections, one after the other, each until its greeting; 0 = one
	// connection that only sends
	Workers  int
	Duration time.Duration // how long
}

// LoadReport is the result of a load.
type LoadReport struct {
	Connections int     `json:"connections"` // that got their greeting
	Failed      int     `json:"failed"`      // that got none within 3 s
	Bytes       int64   `json:"bytes"`       // that were taken from the sender
	Seconds     float64 `json:"seconds"`
	CPU         float64 `json:"cpu"`             // seconds of this process, user and system, since its start
	Error       string  `json:"error,omitempty"` // of the last failure
}

// Load makes the load until ctx or its duration ends.
func Load(ctx context.Context, cfg LoadConfig) (LoadReport, error) {
	run, cancel := context.WithTimeout(ctx, cfg.Duration)
	defer cancel()
	begin := time.Now()
	if cfg.Workers == 0 {
		n, err := pour(run, cfg.To)
		return LoadReport{Bytes: n, Seconds: time.Since(begin).Seconds()}, err
	}
	var mu sync.Mutex
	var report LoadReport
	var wg sync.WaitGroup
	for range cfg.Workers {
		wg.Go(func() {
			var opened, failed int
			var last string
			for run.Err() == nil {
				// It outlives the load: each connection that began is completed.
				if a := Get(context.WithoutCancel(ctx), Request{Protocol: "tcp", To: cfg.To}); a.Error == "" {
					opened++
				} else {
					failed, last = failed+1, a.Error
				}
			}
			mu.Lock()
			defer mu.Unlock()
			report.Connections += opened
			report.Failed += failed
			report.Error = max(report.Error, last)
		})
	}
	wg.Wait()
	report.Seconds = time.Since(begin).Seconds()
	return report, nil
}

// pour sends to a sink until ctx ends.
func pour(ctx context.Context, to netip.AddrPort) (sent int64, err error) {
	conn, err := dial(ctx, "tcp", netip.Addr{}, 0, to)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })() // ends a blocked write
	chunk := make([]byte, 256<<10)
	for {
		n, err := conn.Write(chunk)
		sent += int64(n)
		if ctx.Err() != nil {
			return sent, nil
		}
		if err != nil {
			return sent, err
		}
	}
}

// Sink takes TCP connections on a port of all addresses and reads what they send, until ctx ends.
// It calls ready when it listens.
func Sink(ctx context.Context, port uint16, ready func()) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return fmt.Errorf("sink: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	ready()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("sink: %w", err)
		}
		go func() {
			defer conn.Close()
			// ends when the sender does
			_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{conn}, make([]byte, 256<<10))
		}()
	}
}
