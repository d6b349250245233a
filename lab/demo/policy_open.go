package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"hairpin/lab/attack"
)

// revocationTrials returns trials of connections that are open while what permits them is removed
// and created again.
func revocationTrials() []Trial {
	var list []Trial
	for _, x := range []struct {
		way
		direction string
	}{
		{fromNeighbour, "ingress"}, {fromFar, "ingress"}, {byService, "ingress"}, {byFarService, "ingress"},
		{toNeighbour, "egress"}, {toFar, "egress"}, {toFarService, "egress"},
	} {
		for _, f := range families() {
			list = append(list, Trial{Name: x.name("policy revoked, "+x.direction, "ipv"+f.name),
				Not: []Exception{noPolicies},
				try: func(ctx context.Context, w *world) (string, error) {
					return w.revoke(ctx, x.way, x.direction, f)
				}})
		}
	}
	return list
}

// revoke opens a TCP connection and a UDP flow. Once no policy permits them, none of their packets
// may arrive. When one permits them again, TCP must continue without loss.
func (w *world) revoke(ctx context.Context, x way, direction string, f family) (note string, err error) {
	server, beside, spec := isolated, clientHere, "policyTypes: [Ingress], ingress: [{from: "
	if direction == "egress" {
		server, beside, spec = x.to, toClient, "policyTypes: [Egress], egress: [{to: "
		if x.path == "ClusterIP" {
			server = "pod-c1"
		}
	}
	isolating := spec + "[{podSelector: {matchLabels: {app: nothing}}}]}]"
	permitting := netpol("trial-permit", isolatedTarget, spec+"[{podSelector: {matchLabels: {app: web}}}]}]")
	remove, err := w.putAll(ctx, podsNamespace, netpol("trial", isolatedTarget, isolating))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, remove()) }()
	revoke, err := w.putAll(ctx, permitting)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, revoke()) }()
	inForce := func(passes, drops []way) error {
		return w.until(ctx, "the policies are in force", func() error {
			return w.probeAll(ctx, probes("", passes...), probes("", drops...), w.patience())
		})
	}
	if err := inForce(slices.Concat(others, []way{x}), []way{beside}); err != nil {
		return "", err
	}
	tcp, udp, err := w.openBoth(ctx, x, f)
	if err != nil {
		return "", err
	}
	defer tcp.Close()
	defer udp.Close()
	if err := revoke(); err != nil {
		return "", err
	}
	begin := time.Now()
	unanswered, err := w.stops(ctx, tcp, udp)
	if err != nil {
		return "", err
	}
	note = fmt.Sprintf("stopped after %d ms", time.Since(begin).Milliseconds())
	if err := inForce(others, []way{x, beside}); err != nil {
		return "", err
	}
	late, err := w.sendsInVain(ctx, server, tcp, udp)
	if err != nil {
		return "", err
	}
	unanswered = append(unanswered, late...)
	again, err := w.putAll(ctx, permitting)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, again()) }()
	// TCP waits twice as long after each vain retransmission: up to as long as they were in vain.
	limit := w.longer(20*time.Second) + 2*time.Since(begin)
	begin = time.Now()
	if err := tcp.SetDeadline(begin.Add(limit)); err != nil {
		return "", err
	}
	got := make([]byte, len(unanswered))
	if n, err := io.ReadFull(tcp, got); err != nil || !bytes.Equal(got, unanswered) {
		return "", fmt.Errorf("permitted again: %d of %d bytes came back, %w", n, len(got), err)
	}
	if err := w.until(ctx, "UDP, permitted again", func() error { return w.echo(udp, newMark("again")) }); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, continued after %d ms", note, time.Since(begin).Milliseconds()),
		w.echo(tcp, make([]byte, 1<<15))
}

// sendsInVain sends a message over both connections, which must not arrive at the server's link.
func (w *world) sendsInVain(ctx context.Context, server string, conns ...net.Conn) (message []byte, err error) {
	ear, err := attack.Listen(w.endpoints[server].place, podLink)
	if err != nil {
		return nil, err
	}
	defer ear.Close()
	message = newMark("late")
	for _, conn := range conns {
		if err := conn.SetDeadline(time.Time{}); err != nil {
			return nil, err
		}
		if _, err := conn.Write(message); err != nil {
			return nil, err
		}
	}
	if ear.Hear(ctx, w.longer(time.Second), contains(message)) != nil {
		return nil, fmt.Errorf("%s got a packet that no policy permits", server)
	}
	return message, nil
}

// openBoth opens a TCP connection and a UDP flow, and uses them.
func (w *world) openBoth(ctx context.Context, x way, f family) (tcp, udp net.Conn, err error) {
	if tcp, err = w.dialWay(ctx, x, "tcp", f); err != nil {
		return nil, nil, err
	}
	if udp, err = w.dialWay(ctx, x, "udp", f); err == nil {
		if _, err = w.greeting(tcp, "tcp"); err == nil {
			_, err = w.greeting(udp, "udp")
		}
		if err != nil {
			_ = udp.Close()
		}
	}
	if err != nil {
		_ = tcp.Close()
	}
	return tcp, udp, err
}

// stops uses both connections until nothing comes back. It returns what TCP has sent without an
// answer.
func (w *world) stops(ctx context.Context, tcp, udp net.Conn) (unanswered []byte, err error) {
	err = w.until(ctx, "UDP stops", func() error {
		if w.echo(udp, newMark("udp")) == nil {
			return errors.New("an answer came")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = w.until(ctx, "TCP stops", func() error {
		mark := newMark("tcp")
		if err := tcp.SetDeadline(time.Now().Add(w.patience())); err != nil {
			return err
		}
		if _, err := tcp.Write(mark); err != nil {
			return err
		}
		n, err := io.ReadFull(tcp, make([]byte, len(mark)))
		if err == nil {
			return errors.New("an answer came")
		}
		unanswered = append(unanswered, mark[n:]...)
		return nil
	})
	return unanswered, err
}
