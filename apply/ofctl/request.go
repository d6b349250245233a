package ofctl

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"hairpin/apply/late"
	"hairpin/openflow"
)

// request sends a multipart request on a connection of its own to a bridge, and passes the replies
// to reply until no more follow. It retries once after a connection that ovs-vswitchd closed before
// it replied. ovs-vswitchd closes one if the first message arrives a second after the connect, as
// on a busy machine.
func (t *Target) request(ctx context.Context, bridge string, message []byte,
	reply func(body []byte) (more bool, err error)) error {
	late.For(ctx, vswitchdName)
	replied := false
	err := t.cfg.request(ctx, bridge, message, func(body []byte) (bool, error) { replied = true; return reply(body) })
	if !replied && ctx.Err() == nil && (errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.ECONNRESET)) {
		t.log.Debug("ovs-vswitchd ended a connection", "error", err)
		err = t.cfg.request(ctx, bridge, message, reply)
	}
	if err != nil {
		return fmt.Errorf("OpenFlow of %s: %w", bridge, err)
	}
	return nil
}

func (cfg *Config) request(ctx context.Context, bridge string, message []byte,
	reply func(body []byte) (more bool, err error)) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", cfg.Path(cfg.socket(bridge)))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := conn.Write(append(openflow.Message(nil, openflow.Hello, 0), message...)); err != nil {
		return err
	}
	for r := bufio.NewReaderSize(conn, openflow.MaxMessage); ; {
		kind, xid, body, err := openflow.Receive(r)
		more := true
		switch {
		case err != nil:
			return cmp.Or(ctx.Err(), err)
		case kind == openflow.Error:
			return openflow.ParseError(xid, body)
		case kind == openflow.MultipartReply:
			more, err = reply(body)
		}
		if err != nil || !more {
			return err
		}
	}
}

// eachFlow passes the flows of a bridge that have the cookie in the bits of a mask to f.
func (t *Target) eachFlow(ctx context.Context, bridge string, cookie, mask uint64,
	f func(*openflow.InstalledFlow)) error {
	return t.request(ctx, bridge, openflow.RequestFlows(nil, 1, cookie, mask), func(body []byte) (bool, error) {
		list, more, err := openflow.ParseFlows(body)
		for i := range list {
			f(&list[i])
		}
		return more, err
	})
}

// tables returns the figures of a bridge's tables.
func (t *Target) tables(ctx context.Context, bridge string) (map[uint8]openflow.Table, error) {
	tables := map[uint8]openflow.Table{}
	err := t.request(ctx, bridge, openflow.RequestTables(nil, 1),
		func(body []byte) (bool, error) { return openflow.ParseTables(tables, body) })
	return tables, err
}

// remote returns the OpenFlow address of a bridge for ovs-ofctl.
func (t *Target) remote(bridge string) string { return "unix:" + t.cfg.socket(bridge) }

// grace is how long ovs-ofctl may take to exit after it was signalled.
const grace = time.Second

// ofctl runs ovs-ofctl and returns its output. Like request, it retries once.
func (t *Target) ofctl(ctx context.Context, stdin string, args ...string) (string, error) {
	out, err := t.ofctlOnce(ctx, stdin, args...)
	if err != nil && ctx.Err() == nil && ended(err) {
		t.log.Debug("ovs-vswitchd ended a connection", "error", err)
		out, err = t.ofctlOnce(ctx, stdin, args...)
	}
	return out, err
}

// ended reports whether err says that the peer closed ovs-ofctl's connection.
func ended(err error) bool {
	return slices.ContainsFunc([]string{"(Broken pipe)", "(Connection reset by peer)", "(End of file)"},
		func(why string) bool {
			return strings.Contains(err.Error(), why)
		})
}

// openFlow is the first version that has groups in bundles, and a selection method of groups.
const openFlow = "OpenFlow15"

// ofctlOnce runs ovs-ofctl once.
func (t *Target) ofctlOnce(ctx context.Context, stdin string, args ...string) (string, error) {
	late.For(ctx, vswitchdName)
	cmd := t.cfg.Command(ctx, slices.Concat([]string{"ovs-ofctl", "-O", openFlow}, args)...)
	var stderr strings.Builder
	cmd.Stdin, cmd.Stderr, cmd.WaitDelay = strings.NewReader(stdin), &stderr, grace
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ovs-ofctl: %w: %s", err, firstLines(stderr.String()))
	}
	return string(out), nil
}

// firstLines keeps an error text readable: ovs-ofctl repeats the whole flow in hexadecimal.
func firstLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[:min(3, len(lines))], "; ")
}
