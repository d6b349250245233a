package podside

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/lab/probe"
)

const (
	attemptTimeout = 2 * time.Second
	attemptPause   = 200 * time.Millisecond
	blockedTimes   = 2 // attempts that must all fail
)

// Run carries out a check, which has the index i. Endpoints and names may be newer than what the
// nodes know, so a check that fails is repeated. One that must be blocked is not: a policy that
// exists before its pods has no gap.
func (c Check) Run(ctx context.Context, i int, patience time.Duration) Result {
	r := Result{Check: i}
	for end := time.Now().Add(patience); ; {
		r.Attempts++
		begin := time.Now()
		note, measured, err := c.try(ctx)
		r.Millis = float64(time.Since(begin).Microseconds()) / 1000
		r.Note, r.Measured, r.Error = note, measured, ""
		if err != nil {
			r.Error = err.Error()
		}
		over := err == nil || time.Now().After(end)
		if c.Kind == Blocked {
			over = err != nil || r.Attempts == blockedTimes
		}
		if over || ctx.Err() != nil {
			return r
		}
		select {
		case <-ctx.Done():
		case <-time.After(attemptPause):
		}
	}
}

// try carries out a check once.
func (c Check) try(ctx context.Context) (note string, m *Measurement, err error) {
	switch c.Kind {
	case Answers:
		return "", nil, c.answered(ctx)
	case Accepts:
		return "", nil, c.accepted(ctx)
	case Blocked:
		return "", nil, c.blocked(ctx)
	case Resolves:
		return "", nil, c.resolved(ctx)
	case Full:
		if c.Protocol == "tcp" {
			return "", nil, c.bulk(ctx)
		}
		note, err = c.filled(ctx)
		return note, nil, err
	case Measures:
		m, err = c.measured(ctx)
		return "", m, err
	}
	return "", nil, fmt.Errorf("kind of check %q is unknown: the image is older than this program", c.Kind)
}

func (c Check) get(ctx context.Context) probe.Answer {
	return probe.Get(ctx, probe.Request{Protocol: c.Protocol, To: c.To, Timeout: attemptTimeout})
}

// answered checks which server answers, and which client it sees.
func (c Check) answered(ctx context.Context) error {
	a := c.get(ctx)
	switch {
	case a.Error != "":
		return errors.New(a.Error)
	case a.Name != c.Server:
		return fmt.Errorf("server %q answers, not %s", a.Name, c.Server)
	case c.Source && a.Saw.Addr() != a.Client.Addr():
		return fmt.Errorf("the server sees %s, not the client's own address %s", a.Saw.Addr(), a.Client.Addr())
	}
	return nil
}

func (c Check) accepted(ctx context.Context) error {
	conn, err := (&net.Dialer{Timeout: attemptTimeout}).DialContext(ctx, "tcp", c.To.String())
	if err != nil {
		return err
	}
	return conn.Close()
}

// blocked checks that no answer comes: a timeout, or a refusal (in the words of package net). Other
// errors, such as a missing route of the client's host, prove nothing about a policy.
func (c Check) blocked(ctx context.Context) error {
	a := c.get(ctx)
	switch {
	case a.Error == "":
		return fmt.Errorf("server %q answers, although a policy drops the packet", a.Name)
	case strings.Contains(a.Error, "timeout"), strings.Contains(a.Error, "refused"):
		return nil
	}
	return errors.New(a.Error)
}

func (c Check) resolved(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*attemptTimeout)
	defer cancel()
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", c.Host)
	if err != nil {
		return err
	}
	for i := range list {
		list[i] = list[i].Unmap()
	}
	want := slices.SortedFunc(slices.Values(c.Want), netip.Addr.Compare)
	slices.SortFunc(list, netip.Addr.Compare)
	if !slices.Equal(slices.Compact(list), want) {
		return fmt.Errorf("%s has the addresses %v, not %v", c.Host, list, want)
	}
	return nil
}

// bulk sends many full segments, and expects them back.
func (c Check) bulk(ctx context.Context) error {
	conn, err := (&net.Dialer{Timeout: attemptTimeout}).DialContext(ctx, "tcp", c.To.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * attemptTimeout)); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	if _, err := r.ReadString('\n'); err != nil { // the greeting
		return fmt.Errorf("read the greeting: %w", err)
	}
	const size = 256 << 10
	go func() { _, _ = conn.Write(make([]byte, size)) }() // the reader detects an error
	if n, err := io.CopyN(io.Discard, r, size); err != nil {
		return fmt.Errorf("%d of %d bytes come back: %w", n, size, err)
	}
	return nil
}

// filled sends a datagram that fills the MTU of the route and must not be fragmented, and expects
// it back.
func (c Check) filled(ctx context.Context) (note string, err error) {
	v6 := c.To.Addr().Is6()
	d := net.Dialer{Timeout: attemptTimeout, Control: func(_, _ string, raw syscall.RawConn) (err error) {
		outer := raw.Control(func(fd uintptr) {
			if v6 {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
			} else {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
			}
		})
		return errors.Join(outer, err)
	}}
	conn, err := d.DialContext(ctx, "udp", c.To.String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	mtu, err := routeMTU(conn.(*net.UDPConn), v6)
	if err != nil {
		return "", err
	}
	const headers4, headers6, maxData = 20 + 8, 40 + 8, 65000
	size := mtu - headers4
	if v6 {
		size = mtu - headers6
	}
	size = min(size, maxData) // the loopback device has more than a datagram can have
	note = fmt.Sprintf("MTU %d", mtu)
	if err := conn.SetDeadline(time.Now().Add(attemptTimeout)); err != nil {
		return note, err
	}
	if _, err := conn.Write([]byte(strings.Repeat("x", size))); err != nil {
		return note, err
	}
	back := make([]byte, size+1)
	n, err := conn.Read(back)
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes of %d come back", n, size)
	}
	if err != nil {
		return note, fmt.Errorf("datagram of %d bytes, MTU %d: %w", size, mtu, err)
	}
	return note, nil
}

// routeMTU returns the MTU of the route of a connected socket.
func routeMTU(conn *net.UDPConn, v6 bool) (mtu int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	outer := raw.Control(func(fd uintptr) {
		if v6 {
			mtu, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU)
		} else {
			mtu, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU)
		}
	})
	return mtu, errors.Join(outer, err)
}
