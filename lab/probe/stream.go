package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// StreamConfig describes a stream.
type StreamConfig struct {
	Protocol string // "tcp" or "udp"
	To       netip.AddrPort
	// new connections per second; each gets a greeting and ends. For UDP: a new socket and one
	// datagram
	Rate     int
	Speak    bool          // see Request
	Long     int           // connections that stay open for the whole time
	Every    time.Duration // between two messages on each long connection
	Timeout  time.Duration // after which a new connection, or a message of a long one, counts as failed
	Duration time.Duration
}

// Report is the result of a stream. Times are in milliseconds.
type Report struct {
	Opened     int      `json:"opened"` // new connections tried
	Failed     int      `json:"failed"` // of these, without a greeting within the timeout
	SlowestMs  float64  `json:"slowest_ms"`
	OpenGapMs  float64  `json:"open_gap_ms"` // longest time in which no new connection got its greeting
	Long       int      `json:"long"`
	Broken     int      `json:"broken"` // long connections that ended, or were silent for longer than the timeout
	Messages   int      `json:"messages"`
	Lost       int      `json:"lost"`             // UDP only: messages without an echo
	LongGapMs  float64  `json:"long_gap_ms"`      // longest time without an echo on any long connection
	GapAtMs    float64  `json:"gap_at_ms"`        // when the longer of the two gaps began, from the start
	Errors     []string `json:"errors,omitempty"` // the first few
	DurationMs float64  `json:"duration_ms"`
}

type stream struct {
	cfg     StreamConfig
	begin   time.Time
	mu      sync.Mutex
	report  Report
	lastNew time.Time // when a new connection last succeeded
	answers int       // greetings of new connections, and echoes
}

// Stream runs a stream until ctx or its duration ends. An error means that it could not start: the
// long connections could not be opened. tell is called when these are open, and then periodically,
// with the number of answers so far.
func Stream(ctx context.Context, cfg StreamConfig, tell func(answers int)) (Report, error) {
	if cfg.Rate < 0 || cfg.Long < 0 || cfg.Every <= 0 || cfg.Timeout <= 0 {
		return Report{}, fmt.Errorf("stream: bad configuration %+v", cfg)
	}
	s := &stream{cfg: cfg, report: Report{Long: cfg.Long}}
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for range cfg.Long {
		c, err := s.openLong(ctx)
		if err != nil {
			return Report{}, fmt.Errorf("stream: open long connection: %w", err)
		}
		conns = append(conns, c)
	}
	tell(0)
	s.begin = time.Now()
	s.lastNew = s.begin
	run, cancel := context.WithTimeout(ctx, cfg.Duration)
	defer cancel()
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() { s.long(run, c) })
	}
	wg.Go(func() { s.count(run, tell) })
	s.open(run, &wg)
	wg.Wait()
	s.report.DurationMs = millis(time.Since(s.begin))
	return s.report, nil
}

// count reports the number of answers periodically.
func (s *stream) count(ctx context.Context, tell func(answers int)) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			s.mu.Lock()
			n := s.answers
			s.mu.Unlock()
			tell(n)
		}
	}
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (s *stream) openLong(ctx context.Context) (net.Conn, error) {
	session, err := Open(ctx, Request{Protocol: s.cfg.Protocol, To: s.cfg.To, Timeout: s.cfg.Timeout})
	if err != nil {
		return nil, err
	}
	return session.conn, session.conn.SetDeadline(time.Time{}) // remove the greeting's deadline
}

// open makes new connections at the rate. Each is its own goroutine, so a slow one delays no other.
func (s *stream) open(ctx context.Context, wg *sync.WaitGroup) {
	if s.cfg.Rate == 0 {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	opened := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for due := int(time.Since(s.begin).Seconds() * float64(s.cfg.Rate)); opened < due; opened++ {
			// It outlives ctx: the stream waits for each connection that began in time.
			wg.Go(func() {
				begun := time.Now()
				a := Get(context.WithoutCancel(ctx),
					Request{Protocol: s.cfg.Protocol, To: s.cfg.To, Timeout: s.cfg.Timeout, Speak: s.cfg.Speak})
				s.opened(a, begun)
			})
		}
	}
}

func (s *stream) opened(a Answer, begun time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Opened++
	if a.Error != "" {
		s.report.Failed++
		s.note(begun, "new connection", a.Error)
		return
	}
	s.answers++
	s.report.SlowestMs = max(s.report.SlowestMs, a.Millis)
	now := time.Now()
	s.gap(&s.report.OpenGapMs, s.lastNew, now)
	s.lastNew = now
}

// note keeps the first errors; the caller holds the lock.
func (s *stream) note(at time.Time, what, err string) {
	if len(s.report.Errors) < 5 {
		s.report.Errors = append(s.report.Errors, fmt.Sprintf("%s at %.0f ms: %s", what, millis(at.Sub(s.begin)), err))
	}
}

// gap raises longest to the time between two successes; the caller holds the lock.
func (s *stream) gap(longest *float64, from, to time.Time) {
	g := millis(to.Sub(from))
	if g > *longest {
		if g > max(s.report.OpenGapMs, s.report.LongGapMs) {
			s.report.GapAtMs = millis(from.Sub(s.begin))
		}
		*longest = g
	}
}

// long sends numbered messages on an open connection and watches the echoes.
func (s *stream) long(ctx context.Context, c net.Conn) {
	done := make(chan int)
	go func() { done <- s.echoes(c) }()
	tick := time.NewTicker(s.cfg.Every)
	defer tick.Stop()
	sent := 0
	message := make([]byte, 8)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			binary.BigEndian.PutUint64(message, uint64(sent))
			_ = c.SetWriteDeadline(time.Now().Add(s.cfg.Timeout)) // the peer may not acknowledge any more
			if _, err := c.Write(message); err != nil && s.cfg.Protocol == "tcp" {
				break // the reader sees it too
			}
			sent++
		case echoed := <-done: // ended early
			s.ended(sent, echoed, true)
			return
		}
	}
	echoed := 0
	if s.cfg.Protocol == "tcp" {
		_ = c.(*net.TCPConn).CloseWrite() // the server echoes the rest and closes
	} else {
		_ = c.SetReadDeadline(time.Now().Add(min(s.cfg.Timeout, time.Second)))
	}
	echoed = <-done
	s.ended(sent, echoed, s.cfg.Protocol == "tcp" && echoed < sent)
}

func (s *stream) ended(sent, echoed int, broken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Messages += sent
	if broken {
		s.report.Broken++
	}
	if s.cfg.Protocol == "udp" {
		s.report.Lost += sent - echoed
	}
}

// echoes counts echoes until the connection ends or is silent for the timeout.
func (s *stream) echoes(c net.Conn) int {
	echo := make([]byte, 8)
	last := time.Now()
	for n := 0; ; {
		if s.cfg.Protocol == "tcp" {
			_ = c.SetReadDeadline(time.Now().Add(s.cfg.Timeout)) // a closed connection fails below
		}
		_, err := io.ReadFull(c, echo)
		now := time.Now()
		s.mu.Lock()
		if err == nil {
			n++
			s.answers++
			s.gap(&s.report.LongGapMs, last, now)
			last = now
		} else if err != io.EOF && s.cfg.Protocol == "tcp" {
			s.note(now, "long connection", err.Error())
		}
		s.mu.Unlock()
		if errors.Is(err, net.ErrClosed) {
			return n
		}
		// An ICMP error on a UDP socket is reported once and is ignored; the deadline ends the
		// reading.
		if timeout, ok := err.(net.Error); err != nil && (s.cfg.Protocol == "tcp" || ok && timeout.Timeout()) {
			return n
		}
	}
}
