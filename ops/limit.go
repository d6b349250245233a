package ops

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// Connections that a port of the agent or the controller has open at most. Pods and strangers can
// reach these ports.
const (
	mostAskers  = 256  // probes and scrapers
	MostProbers = 4096 // of egress addresses: each node that asks keeps its connection
)

// crowd is a listener whose open connections are bounded. Beyond the bound, the client with the
// most connections loses its oldest: a client that opens many harms no other, and a probe always
// gets in.
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
		return nil, err // of net, which says what it did
	}
	own := &crowdConn{Conn: c, l: l}
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok { // else it comes by a socket of the container, as its probe does
		own.client = tcp.AddrPort().Addr().Unmap()
	}
	if most := l.add(own); most != nil {
		_ = most.Close() // without notice: it was one of many
	}
	return own, nil
}

// add notes a connection, and gives the one that must go for it.
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

// Close closes the connection and makes room for another.
func (c *crowdConn) Close() error {
	c.l.drop(c)
	return c.Conn.Close()
}
