package lab

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/lab/probe"
)

// TestGet checks that servers report both addresses of a connection, for every protocol and family,
// between a host and a node through the underlay and br-ex, and also for a secondary address.
func TestGet(t *testing.T) {
	ctx := t.Context()
	l := Start(t, Config{})
	node := l.Add(t, NodeConfig{})
	client, err := l.StartHost(ctx, HostConfig{Name: "client"})
	if err != nil {
		t.Fatal(err)
	}
	if err := node.AddAddress("lo", netip.MustParsePrefix("172.18.0.99/32")); err != nil {
		t.Fatal(err)
	}
	stop, err := Serve(ctx, node.Host, "web", 8081)
	if err != nil {
		t.Fatal(err)
	}
	for _, protocol := range []string{"tcp", "udp"} {
		for _, c := range []struct{ to, saw string }{
			{"172.18.0.3", "172.18.0.4"}, {"172.18.0.99", "172.18.0.4"}, {"fc00:f853:ccd::3", "fc00:f853:ccd::4"},
		} {
			to := netip.AddrPortFrom(netip.MustParseAddr(c.to), 8081)
			a := Get(ctx, client, probe.Request{Protocol: protocol, To: to})
			if a.Error != "" || a.Name != "web" || a.Saw.Addr().String() != c.saw || a.Local != to ||
				a.Client != a.Saw {
				t.Errorf("%s %s: %+v", protocol, to, a)
			}
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	to := netip.MustParseAddrPort("172.18.0.3:8081")
	if a := Get(ctx, client, probe.Request{Protocol: "tcp", To: to, Timeout: time.Second}); a.Error == "" {
		t.Errorf("a stopped server answered %+v", a)
	}
}

// deaf has the nft commands that make a host's kernel drop all frames of eth0.
const deaf = `add table netdev guard; add chain netdev guard in { type filter hook ingress device "eth0" priority 0; policy drop; }`

// TestStream: a stream counts its work, and detects when the server's switch stops for 0.5 s.
func TestStream(t *testing.T) {
	ctx := t.Context()
	l := Start(t, Config{})
	node := l.Add(t, NodeConfig{})
	client, err := l.StartHost(ctx, HostConfig{Name: "client"})
	if err != nil {
		t.Fatal(err)
	}
	// With the userspace datapath the kernel receives every frame of eth0 too, unless the agent's
	// guard prevents it: the server would receive each datagram twice.
	if _, err := node.Exec(ctx, "nft", deaf); err != nil {
		t.Fatal(err)
	}
	if _, err := Serve(ctx, node.Host, "web", 8081); err != nil {
		t.Fatal(err)
	}
	for _, protocol := range []string{"tcp", "udp"} {
		cfg := probe.StreamConfig{
			Protocol: protocol, To: netip.MustParseAddrPort("172.18.0.3:8081"), Rate: 100, Long: 3,
			Every: 10 * time.Millisecond, Timeout: 3 * time.Second, Duration: time.Minute,
		}
		s, err := StartStream(ctx, client, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := Flow(ctx, 200, s); err != nil {
			t.Fatal(err)
		}
		r, err := s.End()
		if err != nil {
			t.Fatal(err)
		}
		if r.Failed+r.Broken+r.Lost != 0 || r.Opened == 0 || r.Messages == 0 || len(r.Errors) != 0 {
			t.Errorf("%s, undisturbed: %+v", protocol, r)
		}
		if s, err = StartStream(ctx, client, cfg); err != nil {
			t.Fatal(err)
		}
		const pause = 500 * time.Millisecond
		if err := node.Signal(VSwitchd, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pause) // the duration of the disturbance
		if err := node.Signal(VSwitchd, unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := Flow(ctx, 20, s); err != nil {
			t.Fatal(err)
		}
		if r, err = s.End(); err != nil {
			t.Fatal(err)
		}
		if r.OpenGapMs < 400 || r.LongGapMs < 400 || r.Broken != 0 {
			t.Errorf("%s, with a pause of %s: %+v", protocol, pause, r)
		}
		t.Logf("%s: %+v", protocol, r)
	}
}

// TestStreamToNobody: a stream ends even when its long connections get no acknowledgments.
func TestStreamToNobody(t *testing.T) {
	ctx := t.Context()
	l := Start(t, Config{})
	var hosts []*Host
	for _, name := range []string{"server", "client"} {
		h, err := l.StartHost(ctx, HostConfig{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, h)
	}
	server, client := hosts[0], hosts[1]
	if _, err := Serve(ctx, server, "web", 8081); err != nil {
		t.Fatal(err)
	}
	limited, cancel := context.WithTimeout(ctx, 30*time.Second) // then the stream is killed, and has no report
	defer cancel()
	s, err := StartStream(limited, client, probe.StreamConfig{
		Protocol: "tcp", To: netip.AddrPortFrom(server.Addresses()[0].Addr(), 8081), Long: 3,
		// before they time out, the socket buffers are full
		Every: 20 * time.Microsecond, Timeout: 5 * time.Second, Duration: 6 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Exec(ctx, "nft", deaf); err != nil {
		t.Fatal(err)
	}
	r, err := s.Wait()
	if err != nil {
		t.Fatalf("it did not end: %v", err)
	}
	if r.Broken != 3 {
		t.Errorf("not all three broke: %+v", r)
	}
}
