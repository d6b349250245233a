package cni_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"hairpin/lab"
	"hairpin/lab/probe"
)

// sandbox is a network namespace of a node, and the pod that it is for.
type sandbox struct {
	w       *world
	node    *lab.Node
	pod, id string
	conf    map[string]any
	env     map[string]string
	ips     []netip.Addr // of its ADD, IPv4 first
	host    string       // name of the host's end
}

// sandbox makes a sandbox, as a container runtime does before ADD.
func (w *world) sandbox(n *lab.Node, pod string) *sandbox {
	w.t.Helper()
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails (crypto/rand)
	s := &sandbox{w: w, node: n, pod: pod, id: hex.EncodeToString(random), conf: netconf(n)}
	s.env = map[string]string{
		"CNI_CONTAINERID": s.id, "CNI_NETNS": "/run/netns/" + s.netns(), "CNI_IFNAME": "eth0",
		"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod + ";K8S_POD_INFRA_CONTAINER_ID=" +
			s.id + ";K8S_POD_UID=uid-" + pod,
	}
	must(w.t, s.make())
	return s
}

func (s *sandbox) make() error {
	_, err := s.node.Exec(s.w.t.Context(), "ip", "netns", "add", s.netns())
	return err
}

// netns returns the name of the network namespace.
func (s *sandbox) netns() string { return "cni-" + s.id[:12] }

// path returns the path of the network namespace.
func (s *sandbox) path() string { return s.node.Path("/run/netns/" + s.netns()) }

// vanish removes the network namespace, without DEL.
func (s *sandbox) vanish() {
	s.w.t.Helper()
	sh(s.w.t, s.node, "ip netns del "+s.netns())
}

// call runs the plugin for the sandbox.
func (s *sandbox) call(command string) outcome { return s.callUntil(s.w.t.Context(), command) }

func (s *sandbox) callUntil(ctx context.Context, command string) outcome {
	o := s.w.pluginUntil(ctx, s.node, command, s.conf, s.env)
	if command != "ADD" || o.err != nil {
		return o
	}
	var r struct {
		Interfaces []struct{ Name string }
		IPs        []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal([]byte(o.stdout), &r); err != nil {
		return outcome{o.stdout, err}
	}
	s.ips = nil
	for _, ip := range r.IPs {
		s.ips = append(s.ips, ip.Address.Addr())
	}
	s.host = r.Interfaces[0].Name
	s.conf = maps.Clone(s.conf)
	s.conf["prevResult"] = json.RawMessage(o.stdout)
	return o
}

// add runs an ADD that must succeed.
func (s *sandbox) add() {
	s.w.t.Helper()
	if o := s.call("ADD"); o.err != nil {
		s.w.t.Fatalf("ADD of %s: %v", s.pod, o.err)
	}
}

// del runs a DEL that must succeed.
func (s *sandbox) del() {
	s.w.t.Helper()
	if o := s.call("DEL"); o.err != nil {
		s.w.t.Fatalf("DEL of %s: %v", s.pod, o.err)
	}
}

// inside runs f in a network namespace, on one thread.
func inside(netns string, f func() error) error {
	return ns.WithNetNSPath(netns, func(ns.NetNS) error { return f() })
}

// port is the port of servers.
const port = 8080

// serve starts a probe server in a network namespace, also in one without addresses yet.
func serve(t testing.TB, netns string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- inside(netns, func() error { return probe.Serve(ctx, "server", port, func() { close(ready) }) })
	}()
	t.Cleanup(stop)
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("serve in %s: %v", netns, err)
	}
}

// errSentAgain means that the first packet of a connection was retransmitted after a second: lost,
// or late on a busy machine.
var errSentAgain = errors.New("the first packet was sent again")

// get sends one request to a server from a network namespace. Over UDP, nothing is retransmitted.
func get(netns, protocol string, to netip.Addr, port uint16) error {
	return inside(netns, func() error {
		d := net.Dialer{Timeout: 5 * time.Second, KeepAlive: -1}
		c, err := d.Dial(protocol, netip.AddrPortFrom(to, port).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second)) // of a socket that is open
		if protocol == "udp" {
			if _, err := c.Write([]byte("get")); err != nil {
				return err
			}
		}
		if _, err := c.Read(make([]byte, 1000)); err != nil || protocol == "udp" {
			return err
		}
		return sentOnce(c.(*net.TCPConn))
	})
}

// sentOnce reports whether a connection had no retransmission, including its first packet.
func sentOnce(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var info *unix.TCPInfo
	outer := raw.Control(func(fd uintptr) {
		info,
			err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	switch {
	case outer != nil:
		return outer
	case err != nil:
		return err
	case info.Total_retrans > 0:
		return errSentAgain
	}
	_ = c.SetLinger(0) // no port in TIME_WAIT
	return nil
}

// reachable asserts that the node's host reaches the sandbox, over every family and protocol.
func (s *sandbox) reachable() {
	s.w.t.Helper()
	for _, ip := range s.ips {
		for _, protocol := range []string{"udp", "tcp"} {
			if err := get(s.node.Netns(), protocol, ip, port); err != nil {
				s.w.t.Errorf("%s to %s of %s: %v", protocol, ip, s.pod, err)
			}
		}
	}
}

// links lists the names of the host's ends of pods on a node.
func links(t testing.TB, n *lab.Node) []string {
	t.Helper()
	var list []string
	must(t, n.Do(func() error {
		all, err := net.Interfaces()
		for _, l := range all {
			if len(l.Name) == 15 && l.Name[:7] == "hairpin" {
				list = append(list, l.Name)
			}
		}
		return err
	}))
	slices.Sort(list)
	return list
}

// consistent asserts that a node has exactly these attachments: rows, devices, and addresses in
// OVN.
func consistent(t testing.TB, n *lab.Node, want ...*sandbox) {
	t.Helper()
	var hosts, ips []string
	for _, s := range want {
		hosts, ips = append(hosts, s.host), append(ips, s.ips[0].String())
	}
	slices.Sort(hosts)
	slices.Sort(ips)
	eventually(t, 10*time.Second, "only what is wanted is there", func() error {
		var rows []string
		for _, r := range interfaces(t, n) {
			rows = append(rows, r.Name)
		}
		slices.Sort(rows)
		known := knownToOVN(t, n)
		switch {
		case !slices.Equal(rows, hosts):
			return fmt.Errorf("Interface rows %v, want %v", rows, hosts)
		case !slices.Equal(links(t, n), hosts):
			return fmt.Errorf("links %v, want %v", links(t, n), hosts)
		case !slices.Equal(known, ips):
			return fmt.Errorf("OVN has the addresses %v, want %v", known, ips)
		}
		return nil
	})
}

// kill ends a daemon at once.
func kill(t testing.TB, n *lab.Node, name string) {
	t.Helper()
	must(t, n.Kill(t.Context(), name, syscall.SIGKILL))
}

// freeze stops a daemon until thaw, or the end of the test.
func freeze(t testing.TB, n *lab.Node, name string) {
	t.Helper()
	must(t, n.Signal(name, syscall.SIGSTOP))
	t.Cleanup(func() { _ = n.Signal(name, syscall.SIGCONT) }) // it may run already
}

func thaw(t testing.TB, n *lab.Node, name string) {
	t.Helper()
	must(t, n.Signal(name, syscall.SIGCONT))
}

// openedPort reports whether Open vSwitch has opened the sandbox's port.
func openedPort(t testing.TB, n *lab.Node, s *sandbox) error {
	for _, r := range interfaces(t, n) {
		if r.ExternalIDs["sandbox"] == s.id && r.OFPort != nil {
			return nil
		}
	}
	return errors.New("no port of sandbox " + s.id)
}
