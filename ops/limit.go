package ops

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// Limits of open connections of a port of the agent or the controller. Pods and external clients
// can reach these ports.
const (
	mostAskers  = 256  // probes and scrapers
	MostProbers = 4096 // of egress addresses: each probing node keeps its connection
)

// crowd is a listener with a limit of open connections. Above it, the client with the most
// connections loses its oldest one. Thus a client with many connections does not affect others, and
// a probe always gets one.
type crowd struct {
	net.Listener
	most int

	mu   sync.Mutex
	open map[netip.Addr][]*crowdConn // by client, oldest first
	all  int
}

func Bounded(l net.Listener, most int) net.Listener {
	return &crowd{Listener: l, most: most, open: map[netip.Addr][]*crowdConn{}}
}

// Accept returns the next connection.
func (l *crowd) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err // of net, which names the operation
	}
	own := &crowdConn{Conn: c, l: l}
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok { // else it is a unix socket, as of the container's probe
		own.client = tcp.AddrPort().Addr().Unmap()
	}
	if most := l.add(own); most != nil {
		_ = most.Close() // without notice: the client has many
	}
	return own, nil
}

// add records a connection, and returns the one to close for it, if any.
func (l *crowd) add(c *crowdConn) (evicted *crowdConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c.client] = append(l.open[c.client], c)
	if l.all++; l.all <= l.most {
		return nil
	}
	var longest []*crowdConn
	for _, list := range l.open {
		if len(list) > len(longest) {
			longest = list
		}
	}
	return longest[0]
}

func (l *crowd) drop(c *crowdConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.open[c.client]
	i := slices.Index(list, c)
	if i < 0 {
		return // closed before
	}
	l.all--
	if l.open[c.client] = slices.Delete(list, i, i+1); len(list) == 1 {
		delete(l.open, c.client)
	}
}

type crowdConn struct {
	net.Conn
	l      *crowd
	client netip.Addr
}

// Close closes the connection and frees its place.
func (c *crowdConn) Close() error {
	c.l.drop(c)
	return c.Conn.Close()
}
