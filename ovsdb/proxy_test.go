package ovsdb_test

import (
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
)

// proxy is between a client and a server and handles each connection as the test specifies.
type proxy struct {
	endpoint string
	mu       sync.Mutex
	serve    func(net.Conn)
	conns    []net.Conn // all connections so far
}

// startProxy starts a proxy that passes each connection to serve.
func startProxy(tb testing.TB, serve func(net.Conn)) *proxy {
	tb.Helper()
	path := filepath.Join(shortDir(tb), "p")
	l, err := net.Listen("unix", path)
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxy{endpoint: "unix:" + path, serve: serve}
	var wg sync.WaitGroup
	tb.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			serve := p.serve
			p.conns = append(p.conns, conn)
			p.mu.Unlock()
			wg.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	return p
}

// use changes the handler of later connections.
func (p *proxy) use(serve func(net.Conn)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serve = serve
}

func (p *proxy) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// hangUp closes all connections.
func (p *proxy) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
}

// pass connects to the server, and modifies the messages of both sides.
func pass(s *server, request, answer func([]byte) []byte) func(net.Conn) {
	return func(client net.Conn) {
		up, err := net.Dial("unix", s.file("s"))
		if err != nil {
			return
		}
		defer up.Close()
		go func() {
			pump(up, client, request)
			up.Close()
		}()
		pump(client, up, answer)
	}
}

func pump(to io.Writer, from io.Reader, change func([]byte) []byte) {
	buf := make([]byte, 1<<20)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(change(buf[:n])); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func asItIs(b []byte) []byte { return b }

// say sends a text after the client's first message, and then nothing until the client disconnects.
func say(text string) func(net.Conn) {
	return func(client net.Conn) {
		client.Read(make([]byte, 1<<10))
		io.WriteString(client, text)
		io.Copy(io.Discard, client)
	}
}
