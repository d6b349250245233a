package ops

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// maxClients limits the open connections of a port of the agent or the controller. Pods and
// external clients can reach these ports.
const maxClients = 256

// limitedListener is a listener with a limit of open connections. Above it, the oldest connection
// of the client with the most is closed. So a client with many connections does not affect others,
// and a probe always gets one.
type limitedListener struct {
	net.Listener
	limit int

	mu   sync.Mutex
	open map[netip.Addr][]*limitedConn // by client, oldest first
	all  int
}

// LimitListener returns a listener with at most limit open connections.
func LimitListener(l net.Listener, limit int) net.Listener {
	return &limitedListener{Listener: l, limit: limit, open: map[netip.Addr][]*limitedConn{}}
}

// Accept returns the next connection.
func (l *limitedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err // of net, which names the operation
	}
	limited := &limitedConn{Conn: c, l: l}
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok { // else it is a unix socket, as of the container's probe
		limited.client = tcp.AddrPort().Addr().Unmap()
	}
	if evicted := l.add(limited); evicted != nil {
		_ = evicted.Close()
	}
	return limited, nil
}

// add records a connection, and returns one to close if there are too many.
func (l *limitedListener) add(c *limitedConn) (evicted *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c.client] = append(l.open[c.client], c)
	if l.all++; l.all <= l.limit {
		return nil
	}
	var longest []*limitedConn
	for _, list := range l.open {
		if len(list) > len(longest) {
			longest = list
		}
	}
	return longest[0]
}

// remove forgets a connection.
func (l *limitedListener) remove(c *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.open[c.client]
	i := slices.Index(list, c)
	if i < 0 {
		return // closed before
	}
	l.all--
	if len(list) == 1 {
		delete(l.open, c.client)
	} else {
		l.open[c.client] = slices.Delete(list, i, i+1)
	}
}

type limitedConn struct {
	net.Conn
	l      *limitedListener
	client netip.Addr
}

// Close closes the connection, which then does not count any more.
func (c *limitedConn) Close() error {
	c.l.remove(c)
	return c.Conn.Close()
}
