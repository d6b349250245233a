package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/apply/conntrack"
	"hairpin/apply/inside"
	"hairpin/cluster"
	"hairpin/report"
	"hairpin/walk"
	"hairpin/walk/explain"
)

// mostWatching limits a watch that no request ends.
const mostWatching = 5 * time.Minute

// serveSend serves the requests of `hairpin explain --send`: send a packet from the host or a pod,
// watch arriving packets, and read the kernel's connections.
func (a *agent) serveSend(mux *http.ServeMux) {
	answer := func(path string, do func(context.Context, *report.Send) (any, error)) {
		mux.HandleFunc(path, func(w http.ResponseWriter, q *http.Request) {
			r, err := report.ParseSend(q.URL.Query())
			if err == nil && r.Pod != (cluster.Owner{}) {
				r.Netns, err = a.pods.cni.Netns(r.Pod)
			}
			var out any
			if err == nil {
				out, err = do(q.Context(), r)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(out) // client disconnected
		})
	}
	answer("POST /send", func(ctx context.Context, r *report.Send) (any, error) { return sendFrom(ctx, r) })
	answer("POST /watch", func(_ context.Context, r *report.Send) (any, error) {
		at := walk.Point{Node: a.node, Pod: r.Pod}.String()
		return a.watches.start(r.Netns, at, r.Protocol, r.Port, mostWatching)
	})
	answer("POST /watched", func(_ context.Context, r *report.Send) (any, error) { return a.watches.look(r.Id) })
	answer("POST /watch-end", func(_ context.Context, r *report.Send) (any, error) { return a.watches.end(r.Id) })
	mux.HandleFunc("GET /counts", func(w http.ResponseWriter, q *http.Request) {
		if q.FormValue("output") != "json" {
			http.Error(w, "the agent is "+report.Version()+", and answers in JSON only: the hairpin that asks is older",
				http.StatusNotAcceptable)
			return
		}
		ctx, cancel := context.WithTimeout(q.Context(), countersTime)
		defer cancel()
		counts, err := a.targets.Bridge.Counts(ctx)
		if !refuse(w, err) {
			answerJSON(w, counts)
		}
	})
	answer("GET /connections", func(_ context.Context, r *report.Send) (any, error) {
		return conntrack.Entries(r.Protocol, r.Family, r.Port)
	})
}

// sendFrom makes one TCP handshake, or sends a datagram until a reply comes. It sends once a
// second, like the retransmissions of a handshake.
func sendFrom(ctx context.Context, r *report.Send) (explain.Sent, error) {
	s := explain.Sent{Protocol: r.Protocol.String(), To: r.To, Outcome: explain.Silent}
	if r.Protocol != cluster.TCP && r.Protocol != cluster.UDP {
		return s, fmt.Errorf("%s cannot be sent, only tcp and udp", r.Protocol)
	}
	if !r.To.IsValid() || r.Timeout <= 0 || r.Timeout > time.Minute {
		return s, errors.New("request: to or timeout makes no sense")
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	begin := time.Now()
	err := inside.Do(r.Netns, func() error { return exchange(ctx, &s) })
	s.Millis = float64(time.Since(begin).Microseconds()) / 1000
	switch {
	case err == nil:
		s.Outcome = explain.Answered
	case errors.Is(err, syscall.ECONNREFUSED):
		s.Outcome, s.Detail = explain.Refused, "connection refused"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		s.Detail = "within " + r.Timeout.String()
	default:
		s.Detail = err.Error()
	}
	return s, nil
}

// exchange sends from the calling thread's network namespace.
func exchange(ctx context.Context, s *explain.Sent) error {
	conn, err := (&net.Dialer{KeepAlive: -1,
		Control: func(_, _ string, c syscall.RawConn) error { return claimPort(c, s) }}).DialContext(ctx, s.Protocol,
		s.To.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the packet has been sent
	if from, err := netip.ParseAddrPort(conn.LocalAddr().String()); err == nil {
		s.From = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	}
	if s.Protocol == cluster.TCP.String() {
		return nil
	}
	for {
		if _, err := conn.Write([]byte("hairpin explain --send\n")); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		_, err := conn.Read(make([]byte, 2048))
		if !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			return err
		}
	}
}

// claimPort binds the socket to a port before it connects, so that the port is known even if no
// reply comes.
func claimPort(c syscall.RawConn, s *explain.Sent) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		var any unix.Sockaddr = &unix.SockaddrInet4{}
		if s.To.Addr().Is6() {
			any = &unix.SockaddrInet6{}
		}
		if failed = unix.Bind(int(fd), any); failed != nil {
			return
		}
		var is unix.Sockaddr
		if is, failed = unix.Getsockname(int(fd)); failed != nil {
			return
		}
		switch is := is.(type) {
		case *unix.SockaddrInet4:
			s.From = netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(is.Port))
		case *unix.SockaddrInet6:
			s.From = netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(is.Port))
		}
	})
	return errors.Join(err, failed)
}
