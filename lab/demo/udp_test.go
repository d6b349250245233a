package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/lab"
)

// udpClient keeps one socket, so that conntrack keeps its entries.
type udpClient struct {
	name string
	from *lab.Host
	to   string
	conn net.Conn
	by   string // the server that replied first
}

// begin opens a new socket.
func (c *udpClient) begin(t *testing.T) {
	t.Helper()
	if err := c.from.Do(func() (err error) { c.conn, err = net.Dial("udp", c.to); return err }); err != nil {
		t.Fatal(err)
	}
	conn := c.conn
	t.Cleanup(func() { _ = conn.Close() })
}

func (c *udpClient) ask() (string, error) {
	var g struct{ Name string }
	line := make([]byte, 4096)
	if err := c.conn.SetDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		return "", err
	}
	if _, err := c.conn.Write([]byte("get")); err != nil {
		return "", err
	}
	n, err := c.conn.Read(line)
	if err != nil {
		return "", err
	}
	return g.Name, json.Unmarshal(line[:n], &g)
}

// wait sends requests until a server that fits replies.
func (c *udpClient) wait(t *testing.T, limit time.Duration, fit func(name string) bool) string {
	t.Helper()
	end := time.Now().Add(limit)
	for {
		name, err := c.ask()
		if err == nil && fit(name) {
			return name
		}
		if time.Now().After(end) {
			t.Fatalf("%s: after %s, %q answers, %v", c.name, limit, name, err)
		}
	}
}

// waitRefused sends until the Service rejects the connection that the socket has had since begin.
func (c *udpClient) waitRefused(t *testing.T, limit time.Duration) {
	t.Helper()
	for end := time.Now().Add(limit); ; {
		name, err := c.ask()
		if errors.Is(err, unix.ECONNREFUSED) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %s after the last endpoint has gone, %q answers, %v", c.name, limit, name, err)
		}
	}
}

// connectionsFollow checks UDP clients that never stop sending. They stay with terminating
// endpoints, and leave deleted ones, although their conntrack entries never expire.
func connectionsFollow(t *testing.T, d *Demo) {
	var clients []*udpClient
	a, b, client := d.lab.Node("node-a"), d.lab.Node("node-b"), d.lab.Host(clientName)
	for _, c := range []struct {
		from *lab.Host
		to   string
	}{
		{a.Host, "10.96.1.10:80"}, {a.Host, "[fd00:10:96::110]:80"}, {a.Host, "127.0.0.1:30010"},
		{b.Host, "172.18.0.3:30010"},
		{client, "172.18.0.3:30010"}, {client, "[fc00:f853:ccd::4]:30010"},
	} {
		for i := range 2 {
			x := &udpClient{name: fmt.Sprintf("%s to %s, socket %d", c.from.Name(), c.to, i), from: c.from, to: c.to}
			x.begin(t)
			x.by = x.wait(t, 5*time.Second, func(string) bool { return true })
			clients = append(clients, x)
		}
	}
	stays := clients[0].by
	file := filepath.Join(d.lab.Dir(), "manifests", "slices.yaml")
	all, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	web := func(ready, others string) {
		t.Helper()
		writeSlices(t, file, withEndpoints(string(all), ready, others))
	}
	web(stays, "{ready: false, serving: true, terminating: true}")
	knows := func(n int) {
		t.Helper()
		web := netip.MustParseAddr("10.96.1.10")
		for _, node := range d.lab.Nodes() {
			if err := WaitVIPs(t.Context(), node, 20*time.Second,
				func(vips string) bool {
					return countBackends(vips,
						map[netip.Addr]int{web: n})[web] == n
				}); err != nil {
				t.Fatal(err)
			}
		}
	}
	knows(1)
	for range 5 {
		for _, c := range clients {
			c.wait(t, 5*time.Second, func(name string) bool {
				if name != c.by {
					t.Fatalf("%s: %s answers, though %s still serves while it terminates", c.name, name, c.by)
				}
				return true
			})
		}
	}
	writeSlices(t, file, string(all))
	knows(6)
	web(stays, "")
	knows(1)
	for _, c := range clients {
		c.wait(t, 10*time.Second, func(name string) bool { return name == stays })
	}
	// The only endpoint is replaced, as in a rollout of one replica: there is none in between.
	other := "pod-a1"
	if stays == other {
		other = "pod-b1"
	}
	web("nobody", "")
	knows(0)
	for _, c := range clients {
		c.waitRefused(t, 10*time.Second)
	}
	web(other, "")
	knows(1)
	for _, c := range clients {
		c.wait(t, 10*time.Second, func(name string) bool { return name == other })
	}
	writeSlices(t, file, string(all))
	knows(6)
}

// writeSlices replaces the EndpointSlices of the demo.
func writeSlices(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// withEndpoints changes the endpoints of Service web in EndpointSlices: only one is ready. The
// others have the given conditions, or are removed.
func withEndpoints(text, ready, others string) string {
	endpoint := regexp.MustCompile(`(?m)^- addresses:.*\n(  .*\n?)*`)
	documents := strings.Split(text, "\n---\n")
	for i, doc := range documents {
		if !strings.Contains(doc, "\n  name: web-ipv") {
			continue
		}
		documents[i] = strings.TrimRight(endpoint.ReplaceAllStringFunc(doc, func(e string) string {
			switch {
			case strings.Contains(e, "name: "+ready+"}"):
				return e
			case others == "":
				return ""
			}
			return strings.Replace(e, "{ready: true}", others, 1)
		}), "\n")
	}
	return strings.Join(documents, "\n---\n")
}
