package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"hairpin/ovsdb/codec"
	"hairpin/ovsdb/jsontext"
	"hairpin/signal"
)

// ErrDisconnected is in the error of every call that a lost or closed connection interrupted.
// Whether the server executed such a transaction is unknown.
var ErrDisconnected = errors.New("connection lost")

// DefaultProbe is the time without a message after which a connection is probed. A local server
// that dies closes its socket, so a silent one is busy. A reconnect would make both sides process
// all rows again.
const DefaultProbe = 30 * time.Second

// Conn is a connection to an ovsdb-server. Its methods may be called concurrently. A lost
// connection stays lost; see [Client] for one that reconnects.
type Conn struct {
	endpoint string
	nc       net.Conn
	probe    time.Duration
	notify   func(method string, params []byte) error
	rowTypes *codec.Cache

	mu    sync.Mutex
	calls map[uint64]*call // waiting for a response
	// unknown has the transactions whose caller stopped waiting before the response: the server may
	// still execute them.
	unknown   map[uint64]bool
	onSettled func() // called when unknown becomes empty
	lastID    uint64
	out       []byte        // not yet written
	written   signal.Signal // has a value when out is not empty
	err       error         // why the connection was lost

	lost     chan struct{} // closed when the connection is lost
	lastRead atomic.Int64  // in nanoseconds since started
	started  time.Time
	tasks    sync.WaitGroup
}

// call is a request without a response. The reader removes it from Conn.calls, calls read, and
// closes done.
type call struct {
	method string
	read   func(*jsontext.Parser) error
	done   chan struct{}
	err    error
}

// Option modifies a connection of [Dial].
type Option func(*Conn)

// Probe makes a connection probe the server after d without a message, and close after another d.
// Default: [DefaultProbe].
func Probe(d time.Duration) Option { return func(c *Conn) { c.probe = d } }

// Dial connects to "unix:PATH" or "tcp:HOST:PORT" (an IPv6 HOST in brackets).
func Dial(ctx context.Context, endpoint string, options ...Option) (*Conn, error) {
	network, address, err := split(endpoint)
	if err != nil {
		return nil, err
	}
	nc, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("ovsdb: %w", err)
	}
	c := &Conn{
		endpoint:  endpoint,
		nc:        nc,
		probe:     DefaultProbe,
		notify:    func(string, []byte) error { return nil },
		onSettled: func() {},
		rowTypes:  new(codec.Cache),
		calls:     make(map[uint64]*call),
		unknown:   make(map[uint64]bool),
		written:   signal.New(),
		lost:      make(chan struct{}),
		started:   time.Now(),
	}
	for _, o := range options {
		o(c)
	}
	c.tasks.Go(c.readAll)
	c.tasks.Go(c.writeAll)
	c.tasks.Go(c.probeAll)
	return c, nil
}

// split splits an endpoint.
func split(endpoint string) (network, address string, err error) {
	network, address, _ = strings.Cut(endpoint, ":")
	if address == "" || network != "unix" && network != "tcp" {
		return "", "", fmt.Errorf("ovsdb: endpoint %q: want unix:PATH or tcp:HOST:PORT", endpoint)
	}
	return network, address, nil
}

// Close closes the connection and waits for its goroutines. Pending calls fail with
// [ErrDisconnected].
func (c *Conn) Close() {
	c.lose(errors.New("closed"))
	c.tasks.Wait()
}

// Lost is closed when the connection is lost.
func (c *Conn) Lost() <-chan struct{} { return c.lost }

// Err returns why the connection was lost; nil while it is up.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// lose closes the connection, once, and ends all calls.
func (c *Conn) lose(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = fmt.Errorf("%s: %w: %w", c.endpoint, ErrDisconnected, why)
	c.nc.Close()
	close(c.lost)
	for id, call := range c.calls {
		delete(c.calls, id)
		call.err = c.err
		close(call.done)
	}
}

// call sends a request. It passes the result to read in the reader's goroutine, before any later
// message is handled. Params is a JSON array. If ctx ends first, call sends a cancel to the server.
func (c *Conn) call(ctx context.Context, method string, params []byte, read func(*jsontext.Parser) error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("ovsdb: %s: not sent: %w", method, ctx.Err())
	}
	ca := &call{method: method, read: read, done: make(chan struct{})}
	id, err := c.request(ca, params)
	if err != nil {
		return fmt.Errorf("ovsdb: %s: %w", method, err)
	}
	select {
	case <-ca.done:
	case <-ctx.Done():
		if c.forget(id) {
			c.send(fmt.Appendf(nil, `{"id":null,"method":"cancel","params":[%d]}`, id))
			return fmt.Errorf("ovsdb: %s: no answer from %s: %w", method, c.endpoint, ctx.Err())
		}
		<-ca.done // the response is being read
	}
	var refused *RPCError
	if ca.err != nil && !errors.As(ca.err, &refused) {
		return fmt.Errorf("ovsdb: %s: %w", method, ca.err)
	}
	return ca.err
}

// request assigns an ID to the call and sends it.
func (c *Conn) request(ca *call, params []byte) (id uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.lastID++
	c.calls[c.lastID] = ca
	c.out = jsontext.AppendString(append(c.out, `{"method":`...), ca.method)
	c.out = append(append(c.out, `,"params":`...), params...)
	c.out = append(strconv.AppendUint(append(c.out, `,"id":`...), c.lastID, 10), '}')
	c.written.Notify()
	return c.lastID, nil
}

// send queues a message. It never blocks: the server stops reading while this side does not read,
// so the reader must not wait for a write.
func (c *Conn) send(msg []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = append(c.out, msg...)
	c.written.Notify()
}

// forget removes a call whose context has ended. It returns false if the response came before that.
func (c *Conn) forget(id uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	ca, found := c.calls[id]
	delete(c.calls, id)
	if found && ca.method == "transact" {
		c.unknown[id] = true
	}
	return found
}

// settled reports whether the outcome of every transaction is known.
func (c *Conn) settled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.unknown) == 0
}

// take removes the call that a response is for, and returns it: nil if the call's context has
// ended. A response to a request that was not made is an error.
func (c *Conn) take(id uint64) (*call, error) {
	c.mu.Lock()
	ca, last := c.calls[id], c.lastID
	delete(c.calls, id)
	settles := c.unknown[id] && len(c.unknown) == 1
	delete(c.unknown, id)
	c.mu.Unlock()
	if id > last {
		return nil, fmt.Errorf("answer to request %d, which was not made", id)
	}
	if settles {
		c.onSettled()
	}
	return ca, nil
}

// writeAll writes what other goroutines append to out, until the connection is lost.
func (c *Conn) writeAll() {
	var spare []byte
	for {
		select {
		case <-c.lost:
			return
		case <-c.written.C():
		}
		c.mu.Lock()
		batch := c.out
		c.out = spare[:0]
		c.mu.Unlock()
		if _, err := c.nc.Write(batch); err != nil {
			c.lose(err)
			return
		}
		if spare = batch; cap(spare) > jsontext.KeepBuffer {
			spare = nil
		}
	}
}

// readAll handles messages, until the connection is lost.
func (c *Conn) readAll() {
	frames := jsontext.NewFrames(reader{c})
	for {
		msg, err := frames.Next()
		if err == nil {
			err = c.handle(msg)
		}
		if err != nil {
			c.lose(err)
			return
		}
	}
}

// reader records the time of each read.
type reader struct{ *Conn }

func (r reader) Read(b []byte) (int, error) {
	n, err := r.nc.Read(b)
	r.lastRead.Store(int64(time.Since(r.started)))
	return n, err
}

// handle handles a message: a response, a notification or a request (RFC 7047, 4; JSON-RPC 1.0).
func (c *Conn) handle(msg []byte) error {
	var method string
	var id, params, result, failure []byte
	p := jsontext.NewParser(msg)
	p.Open('{')
	for p.More('}') {
		switch string(p.Key()) {
		case "method":
			method = p.Text()
		case "id":
			id = p.Raw()
		case "params":
			params = p.Raw()
		case "result":
			result = p.Raw()
		case "error":
			failure = p.Raw()
		default:
			p.Skip()
		}
	}
	if err := p.End(); err != nil {
		return fmt.Errorf("read message: %w", err)
	}
	switch {
	case method == "echo":
		reply := append([]byte(`{"error":null,"id":`), id...)
		c.send(append(append(append(reply, `,"result":`...), params...), '}'))
	case method != "":
		if err := c.notify(method, params); err != nil {
			return fmt.Errorf("read %s: %w", method, err)
		}
	default:
		n, err := strconv.ParseUint(string(id), 10, 64)
		if err != nil {
			return fmt.Errorf("read message: neither a method nor an id of ours: %.100q", msg)
		}
		ca, err := c.take(n)
		if ca != nil {
			ca.respond(result, failure)
		}
		return err
	}
	return nil
}

// respond ends a call.
func (ca *call) respond(result, failure []byte) {
	defer close(ca.done)
	if failure != nil && string(failure) != "null" {
		ca.err = refusal(ca.method, failure)
		return
	}
	p := jsontext.NewParser(result)
	err := ca.read(p)
	ca.err = errors.Join(err, p.End())
}

// refusal reads the error member of a response: a string, or an object with a string member
// "error".
func refusal(method string, text []byte) error {
	e := &RPCError{Method: method}
	var o struct{ Error, Details string }
	if json.Unmarshal(text, &e.Reason) == nil {
		return e
	}
	if json.Unmarshal(text, &o) != nil {
		return fmt.Errorf("refused for no known reason: %.200q", text)
	}
	e.Reason, e.Details = o.Error, o.Details
	return e
}

// probeAll sends an echo request after each period of silence, and closes the connection if no
// message follows.
func (c *Conn) probeAll() {
	for {
		silent := c.silence()
		switch {
		case silent < c.probe:
			if !c.sleep(c.probe - silent) {
				return
			}
		default:
			c.send([]byte(`{"id":0,"method":"echo","params":[]}`)) // id 0: the response is ignored
			if !c.sleep(c.probe) {
				return
			}
			if c.silence() >= c.probe+silent {
				c.lose(fmt.Errorf("no answer to an echo request for %v", c.probe))
				return
			}
		}
	}
}

// silence returns the time since the last read.
func (c *Conn) silence() time.Duration {
	return time.Since(c.started) - time.Duration(c.lastRead.Load())
}

// sleep returns false if the connection was lost meanwhile.
func (c *Conn) sleep(d time.Duration) bool {
	select {
	case <-c.lost:
		return false
	case <-time.After(d):
		return true
	}
}
