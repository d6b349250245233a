package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
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

// mostWatching is how long a watch lasts that nobody ends.
const mostWatching = 5 * time.Minute

// serveSend answers what `hairpin explain --send` asks: a packet from the host or a pod, who came there, and the kernel's
// connections.
func (a *agent) serveSend(mux *http.ServeMux) {
	answer := func(path string, do func(context.Context, *sendRequest) (any, error)) {
		mux.HandleFunc(path, func(w http.ResponseWriter, q *http.Request) {
			r, err := parseSend(q.URL.Query())
			if err == nil && r.pod != (cluster.Owner{}) {
				r.netns, err = a.cni.Netns(r.pod)
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
	answer("POST /send", func(ctx context.Context, r *sendRequest) (any, error) { return sendFrom(ctx, r) })
	answer("POST /watch", func(_ context.Context, r *sendRequest) (any, error) {
		at := walk.Point{Node: a.node, Pod: r.pod}.String()
		return a.watches.start(r.netns, at, r.protocol, r.port, mostWatching)
	})
	answer("POST /watched", func(_ context.Context, r *sendRequest) (any, error) { return a.watches.look(r.id) })
	answer("POST /watch-end", func(_ context.Context, r *sendRequest) (any, error) { return a.watches.end(r.id) })
	mux.HandleFunc("GET /counts", func(w http.ResponseWriter, q *http.Request) {
		if q.FormValue("output") != "json" {
			http.Error(w, "the agent is "+report.Version()+", and answers in JSON only: the hairpin that asks is older", http.StatusNotAcceptable)
			return
		}
		ctx, cancel := context.WithTimeout(q.Context(), countersTime)
		defer cancel()
		counts, err := a.targets.bridge.Counts(ctx)
		if !refuse(w, err) {
			answerJSON(w, counts)
		}
	})
	answer("GET /connections", func(_ context.Context, r *sendRequest) (any, error) {
		return conntrack.Entries(r.protocol, r.family, r.port)
	})
}

// sendRequest is what the paths of serveSend are asked with.
type sendRequest struct {
	protocol cluster.Protocol
	family   cluster.Family
	pod      cluster.Owner // none: the host
	netns    string        // of the pod
	to       netip.AddrPort
	port     uint16
	id       int
	timeout  time.Duration
}

func (r *sendRequest) query() string {
	v := url.Values{"proto": {r.protocol.String()}, "family": {r.family.String()}, "port": {strconv.Itoa(int(r.port))}, "id": {strconv.Itoa(r.id)}, "timeout": {r.timeout.String()}}
	if r.pod != (cluster.Owner{}) {
		v.Set("pod", r.pod.Namespace+"/"+r.pod.Name)
	}
	if r.to.IsValid() {
		v.Set("to", r.to.String())
	}
	return "?" + v.Encode()
}

func parseSend(v url.Values) (*sendRequest, error) {
	r := &sendRequest{family: cluster.IPv4}
	var err error
	for _, p := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
		if v.Get("proto") == p.String() {
			r.protocol = p
		}
	}
	if v.Get("family") == cluster.IPv6.String() {
		r.family = cluster.IPv6
	}
	if namespace, name, ok := strings.Cut(v.Get("pod"), "/"); ok {
		r.pod = cluster.Owner{Kind: "Pod", Namespace: namespace, Name: name}
	}
	var port uint64
	if word := v.Get("port"); word != "" {
		port, err = strconv.ParseUint(word, 10, 16)
		r.port = uint16(port)
	}
	if word := v.Get("id"); err == nil && word != "" {
		r.id, err = strconv.Atoi(word)
	}
	if word := v.Get("to"); err == nil && word != "" {
		r.to, err = netip.ParseAddrPort(word)
	}
	if word := v.Get("timeout"); err == nil && word != "" {
		r.timeout, err = time.ParseDuration(word)
	}
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	return r, nil
}

// sendFrom makes one TCP handshake, or sends a datagram, once a second as a handshake is tried again, until one comes back.
func sendFrom(ctx context.Context, r *sendRequest) (explain.Sent, error) {
	s := explain.Sent{Protocol: r.protocol.String(), To: r.to, Outcome: explain.Silent}
	if r.protocol != cluster.TCP && r.protocol != cluster.UDP {
		return s, fmt.Errorf("%s cannot be sent, only tcp and udp", r.protocol)
	}
	if !r.to.IsValid() || r.timeout <= 0 || r.timeout > time.Minute {
		return s, errors.New("request: to or timeout makes no sense")
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	begin := time.Now()
	err := inside.Do(r.netns, func() error { return exchange(ctx, &s) })
	s.Millis = float64(time.Since(begin).Microseconds()) / 1000
	switch {
	case err == nil:
		s.Outcome = explain.Answered
	case errors.Is(err, syscall.ECONNREFUSED):
		s.Outcome, s.Detail = explain.Refused, "connection refused"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		s.Detail = "within " + r.timeout.String()
	default:
		s.Detail = err.Error()
	}
	return s, nil
}

// exchange sends from the calling thread's network namespace.
func exchange(ctx context.Context, s *explain.Sent) error {
	conn, err := (&net.Dialer{KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error { return claimPort(c, s) }}).DialContext(ctx, s.Protocol, s.To.String())
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

// claimPort gives the socket its port before it connects, so that it is known also of a packet that nobody answers.
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
