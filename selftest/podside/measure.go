package podside

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"hairpin/lab/probe"
)

// Measurement has the latencies and the throughput of a path over TCP.
type Measurement struct {
	ConnectMs   float64 `json:"connect_ms"`    // median, of a new connection until the server's first bytes
	RoundTripMs float64 `json:"round_trip_ms"` // median, of a byte and its echo
	MegabitsPS  float64 `json:"megabits_per_s"`
}

const (
	connects   = 50
	roundTrips = 200
)

// measured measures a path.
func (c Check) measured(ctx context.Context) (*Measurement, error) {
	var times []float64
	for range connects {
		a := c.get(ctx)
		if a.Error != "" {
			return nil, fmt.Errorf("connect: %s", a.Error)
		}
		times = append(times, a.Millis)
	}
	m := &Measurement{ConnectMs: median(times)}
	times, err := echoes(ctx, c.To)
	if err != nil {
		return nil, fmt.Errorf("round trip: %w", err)
	}
	m.RoundTripMs = median(times)
	load, err := probe.Load(ctx, probe.LoadConfig{To: netip.AddrPortFrom(c.To.Addr(), c.Sink), Duration: c.For})
	if err != nil {
		return nil, fmt.Errorf("throughput: %w", err)
	}
	m.MegabitsPS = float64(load.Bytes) * 8 / 1e6 / load.Seconds
	return m, nil
}

// echoes measures round trips on one connection.
func echoes(ctx context.Context, to netip.AddrPort) (times []float64, err error) {
	conn, err := (&net.Dialer{Timeout: attemptTimeout}).DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	if err := conn.SetDeadline(time.Now().Add(attemptTimeout)); err != nil {
		return nil, err
	}
	if _, err := r.ReadString('\n'); err != nil { // the greeting
		return nil, err
	}
	for b := []byte{'x'}; len(times) < roundTrips; {
		begin := time.Now()
		if err := conn.SetDeadline(begin.Add(attemptTimeout)); err != nil {
			return nil, err
		}
		if _, err := conn.Write(b); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		times = append(times, float64(time.Since(begin).Microseconds())/1000)
	}
	return times, nil
}

func median(times []float64) float64 {
	slices.Sort(times)
	return times[len(times)/2]
}
