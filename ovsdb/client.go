package ovsdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"hairpin/ovsdb/jsontext"
	"hairpin/retry"
	"hairpin/signal"
)

// Config configures a [Client].
type Config struct {
	Endpoint string  // as for [Dial]
	Database string  // such as OVN_Northbound
	Tables   []Table // to mirror; may be empty

	Probe      time.Duration // as for [Probe]; 0: DefaultProbe
	MaxBackoff time.Duration // between reconnect attempts, see retry.Backoff; 0: 1 s
	Logger     *slog.Logger  // for connects and disconnects; nil: none
}

// Client mirrors tables of a database, and reconnects whenever the connection is lost. Its methods
// may be called concurrently.
type Client struct {
	cfg    Config
	log    *slog.Logger
	mirror *mirror // owned by the reading goroutine

	view    atomic.Pointer[snapshot]
	changed signal.Signal

	mu     sync.Mutex
	conn   *Conn   // in sync; nil while there is none
	schema *Schema // of the last connection
	err    error   // why there is no connection
	stats  Stats

	updated signal.Broadcast // notified when the fields above or the view change

	stop context.CancelFunc
	done chan struct{}
}

var errClosed = errors.New("ovsdb: client is closed")

// Stats counts a client's events.
type Stats struct {
	Connects int // connections that reached sync
	Resumed  int // those of them for which the server sent only changes
	Updates  int // update notifications
}

// Open starts a client. It does not wait for the server; see [Client.WaitSynced]. An error means
// that cfg is invalid.
func Open(cfg Config) (*Client, error) {
	if _, _, err := split(cfg.Endpoint); err != nil {
		return nil, err
	}
	m, err := newMirror(cfg.Tables)
	if err != nil {
		return nil, err
	}
	cfg.Probe = cmp.Or(cfg.Probe, DefaultProbe)
	cfg.MaxBackoff = cmp.Or(cfg.MaxBackoff, retry.Last)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &Client{
		cfg:     cfg,
		log:     cfg.Logger.With("server", cfg.Endpoint, "database", cfg.Database),
		mirror:  m,
		changed: signal.New(),
		err:     errors.New("not connected yet"),
		stop:    stop,
		done:    make(chan struct{}),
	}
	c.view.Store(m.empty().s)
	go c.run(ctx)
	return c, nil
}

// Close closes the connection, stops all goroutines of the client, and waits for them.
func (c *Client) Close() {
	c.stop()
	<-c.done
}

// View returns the current mirror. While the client is not connected, it returns the last one.
func (c *Client) View() View { return View{c.view.Load()} }

// Changed returns a channel, always the same, that has a value if the View changed since the last
// receive. It is for one receiver.
func (c *Client) Changed() <-chan struct{} { return c.changed.C() }

// Connected reports whether the client is connected and its mirror follows the server.
func (c *Client) Connected() bool { return c.current() != nil }

// Settled reports whether the client is connected and the outcome of all its transactions is known.
// A transaction whose context ended before the response may still be executed, and the View does
// not have it.
func (c *Client) Settled() bool {
	conn := c.current()
	return conn != nil && conn.settled()
}

// Echo sends an echo request to the server, if the client is connected.
func (c *Client) Echo(ctx context.Context) error {
	conn := c.current()
	if conn == nil {
		return c.Err()
	}
	return conn.Echo(ctx)
}

// Synced reports whether the mirror was filled since [Open]. It stays true.
func (c *Client) Synced() bool { return c.Stats().Connects > 0 }

// Stats returns the counts since [Open].
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Schema returns the schema of the database as it was at the last connection, nil before the first.
func (c *Client) Schema() *Schema {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.schema
}

// Err returns why the client is not connected; nil if it is.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// WaitSynced waits until [Client.Synced]. If ctx ends first, the error has the reason why the
// server cannot be reached.
func (c *Client) WaitSynced(ctx context.Context) error {
	return c.await(ctx, "sync", c.Synced)
}

// WaitFor waits until holds returns true for the View. It calls holds again after every change.
func (c *Client) WaitFor(ctx context.Context, holds func(View) bool) error {
	return c.await(ctx, "wait", func() bool { return holds(c.View()) })
}

// await waits until holds returns true.
func (c *Client) await(ctx context.Context, what string, holds func() bool) error {
	for {
		updated := c.updated.Next()
		c.mu.Lock()
		why := c.err
		c.mu.Unlock()
		if holds() {
			return nil
		}
		select {
		case <-updated:
		case <-c.done:
			return fmt.Errorf("ovsdb: %s %s: client is closed", what, c.cfg.Database)
		case <-ctx.Done():
			if why != nil {
				return fmt.Errorf("ovsdb: %s %s: %w: %w", what, c.cfg.Database, ctx.Err(), why)
			}
			return fmt.Errorf("ovsdb: %s %s: %w", what, c.cfg.Database, ctx.Err())
		}
	}
}

// Transact is [Conn.Transact] for the client's database, after a wait for a settled connection.
// When it returns without error, the View has the transaction's changes to the mirrored tables,
// because the server sends them before its response.
func (c *Client) Transact(ctx context.Context, ops ...Op) ([]Result, error) {
	var conn *Conn
	err := c.await(ctx, "transact", func() bool {
		conn = c.current()
		return conn != nil && conn.Err() == nil && conn.settled()
	})
	if err != nil {
		return nil, err
	}
	return conn.transact(ctx, c.cfg.Database, ops, c.View().describe)
}

// current returns the connection, nil while there is none.
func (c *Client) current() *Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn
}

// run keeps a connection alive.
func (c *Client) run(ctx context.Context) {
	defer close(c.done)
	backoff := retry.Backoff{Max: c.cfg.MaxBackoff, Jitter: true}
	for ctx.Err() == nil {
		start := time.Now()
		err := c.session(ctx)
		c.down(err)
		if time.Since(start) > c.cfg.MaxBackoff {
			backoff.Done()
		}
		backoff.Sleep(ctx)
	}
}

// session runs one connection until it is lost.
func (c *Client) session(ctx context.Context) error {
	dialing, cancel := context.WithTimeout(ctx, c.cfg.Probe)
	defer cancel()
	conn, err := Dial(dialing, c.cfg.Endpoint, Probe(c.cfg.Probe), func(conn *Conn) {
		conn.rowTypes = c.mirror.rowTypes
		conn.onSettled = c.updated.Notify
		conn.notify = func(name string, params []byte) error { return c.notice(name, params) }
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	schema, err := conn.Schema(ctx, c.cfg.Database)
	if err != nil {
		return err
	}
	if err := c.mirror.check(schema); err != nil {
		return fmt.Errorf("ovsdb: %w", err)
	}
	if err := c.monitor(ctx, conn, schema); err != nil {
		return err
	}
	select {
	case <-conn.Lost():
		return conn.Err()
	case <-ctx.Done():
		return errClosed
	}
}

// monitor starts the monitor and fills the mirror.
func (c *Client) monitor(ctx context.Context, conn *Conn, schema *Schema) error {
	return conn.call(ctx, monitorRequest, c.mirror.params(c.cfg.Database), func(p *jsontext.Parser) error {
		old := c.View()
		v, resumed := c.mirror.first(p, old)
		if p.Err() != nil {
			return nil // call returns the parser's error
		}
		c.log.Info("connected", "version", schema.Version, "resumed", resumed)
		c.publish(v, func() {
			c.conn, c.schema, c.err = conn, schema, nil
			c.stats.Connects++
			if resumed {
				c.stats.Resumed++
			}
		})
		return nil
	})
}

// notice handles a notification.
func (c *Client) notice(name string, params []byte) error {
	if name != monitorNotice || c.current() == nil {
		return errors.New("not expected") // before the monitor, or monitor_canceled: database converted or removed
	}
	p := jsontext.NewParser(params)
	v := c.mirror.next(p, c.View())
	if err := p.Err(); err != nil {
		return err
	}
	c.publish(v, func() { c.stats.Updates++ })
	return nil
}

// publish makes v the View and calls set, with the mutex held.
func (c *Client) publish(v View, set func()) {
	c.mu.Lock()
	c.view.Store(v.s)
	set()
	c.updated.Notify()
	c.mu.Unlock()
	c.changed.Notify()
}

// down records that there is no connection.
func (c *Client) down(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil && why != errClosed {
		c.log.Warn("disconnected", "error", why)
	}
	c.conn, c.err = nil, why
	c.updated.Notify()
}
