package churn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"time"

	"hairpin/apply/inside"
)

// long keeps connections open through changes. While its endpoint serves and its path exists, a
// connection must live and keep its endpoint. Policies, hints and other endpoints do not affect it.
func (c *churn) long(ctx context.Context, r *rand.Rand) {
	for ctx.Err() == nil {
		s, from, family, protocol := c.services[r.IntN(len(c.services))], c.places[r.IntN(len(c.places))], r.IntN(2),
			[]string{"tcp", "udp"}[r.IntN(2)]
		ways, oldest := c.ways(s, from, family), s.oldest()
		w, versions := ways[r.IntN(len(ways))], s.since(oldest)
		v := versions[len(versions)-1]
		if a := w.expect(v, from, family); len(versions) > 1 || len(a.by) == 0 || w.kind == "second address" {
			time.Sleep(time.Millisecond)
			continue // try another one, at rest
		}
		h := held{protocol: protocol, from: from, s: s, w: w, family: family, oldest: oldest, begin: time.Now(),
			to: w.to(v).String(), bridged: w.remote && c.mode(w.node) == "shared"}
		if err := h.open(ctx); err != nil {
			continue // judge decides about that
		}
		c.longs.Add(1)
		c.hold(ctx, r, &h)
		_ = h.conn.Close()
	}
}

// held is a connection that stays open.
type held struct {
	conn     net.Conn
	by       string // the server
	protocol string
	from     *place
	s        *service
	w        way
	family   int
	oldest   int // oldest version that its packets may have met
	begin    time.Time
	to       string
	over     bool
	bridged  bool // from an external client to a node in mode shared
}

func (h *held) open(ctx context.Context) error {
	err := inside.Do(h.from.Netns(), func() (err error) {
		d := net.Dialer{KeepAlive: -1, Timeout: patience}
		port := int(h.from.from.next())
		if d.LocalAddr = (&net.TCPAddr{Port: port}); h.protocol == "udp" {
			d.LocalAddr = &net.UDPAddr{Port: port}
		}
		h.conn, err = d.DialContext(ctx, h.protocol, h.to)
		return err
	})
	if err != nil {
		return err
	}
	if tcp, ok := h.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
		if err := tcp.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		line := make([]byte, 0, 4096)
		for len(line) == 0 || line[len(line)-1] != '\n' {
			n, err := tcp.Read(line[len(line) : len(line)+1])
			if err != nil {
				return errors.Join(err, tcp.Close())
			}
			line = line[:len(line)+n]
		}
		return h.name(line)
	}
	answer, err := h.exchange("get")
	if err == nil {
		err = h.name(answer)
	}
	if err != nil {
		_ = h.conn.Close()
	}
	return err
}

// name reads the server's name from a greeting.
func (h *held) name(greeting []byte) error {
	var g struct{ Name string }
	err := json.Unmarshal(greeting, &g)
	if h.by == "" {
		h.by = g.Name
	}
	if err == nil && h.by != g.Name {
		err = fmt.Errorf("now %s answers", g.Name)
	}
	return err
}

// exchange sends a message and reads the reply. It repeats a datagram, which may be lost.
func (h *held) exchange(message string) ([]byte, error) {
	buf := make([]byte, 4096)
	if h.protocol == "tcp" {
		if err := h.conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return nil, err
		}
		if _, err := h.conn.Write([]byte(message)); err != nil {
			return nil, err
		}
		n, err := h.conn.Read(buf)
		return buf[:n], err
	}
	for end := time.Now().Add(patience); ; {
		if err := h.conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return nil, err
		}
		if _, err := h.conn.Write([]byte(message)); err != nil {
			return nil, err
		}
		n, err := h.conn.Read(buf)
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(end) {
			return buf[:n], err
		}
	}
}

// alive checks whether the same server still replies.
func (h *held) alive() error {
	if h.protocol == "tcp" {
		_, err := h.exchange("x")
		return err
	}
	answer, err := h.exchange("get")
	if err == nil {
		err = h.name(answer)
	}
	return err
}

// must reports whether the connection must live, under all versions that it may have met.
func (h *held) must() bool {
	nodePort, local := false, false
	for _, v := range h.s.since(h.oldest) {
		// On the userspace datapath, the gateway bridge cannot look up a connection's owner in
		// conntrack (docs/user/services.md).
		mine := func(e endpoint) bool { return e.at.host && e.at.node == h.w.node && e.state != unready }
		if local = local || v.etp; h.bridged && local && !v.etp && slices.ContainsFunc(v.endpoints[h.family], mine) {
			return false
		}
		// Hosts redirect external IPs to a proxy port, or to the NodePort if there is one
		// (docs/user/services.md).
		if h.protocol == "udp" && h.w.kind == "external IP" && nodePort && v.kind == "ClusterIP" {
			return false
		}
		nodePort = v.kind != "ClusterIP"
		if !v.there || h.w.to(v).String() != h.to || h.w.expect(v, h.from, h.family).none || h.w.kind == "balancer" &&
			v.ranges > 0 {
			return false
		}
		lives := false
		for _, e := range v.endpoints[h.family] {
			lives = lives || e.at.Name() == h.by && e.state != unready
		}
		// A pod that connects to itself does so through a flow of its switch for the endpoint,
		// while that endpoint is chosen (docs/user/services.md).
		if h.by == h.from.Name() && !h.from.host && !slices.Contains(h.w.expect(v, h.from, h.family).by, h.by) {
			return false
		}
		if !lives {
			return false
		}
	}
	return true
}

// hold uses a connection until it may end.
func (c *churn) hold(ctx context.Context, r *rand.Rand, h *held) {
	until := time.Now().Add(time.Duration(5+r.IntN(60)) * time.Second)
	for ctx.Err() == nil && time.Now().Before(until) {
		err := h.alive()
		if ctx.Err() != nil || !h.must() {
			return
		}
		if err != nil {
			c.fault(h.begin, h.ended(err))
			return
		}
		c.pings.Add(1)
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}
