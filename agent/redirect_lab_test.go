package agent_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"hairpin/apply/redirect"
	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
)

// TestRedirect: with nodeport-path = redirect, NodePort packets bypass the host's conntrack.
// Detached programs, or a replaced bridge, are repaired. A restart of the agent interrupts nothing.
// Without the option, and after cleanup, nothing of it remains.
func TestRedirect(t *testing.T) {
	l := startDemoIn(t, cluster.ModeDetached, "nodeport-path = redirect")
	a := l.Node("node-a")
	waitWell(t, a)
	ways := slices.DeleteFunc(paths(t, l),
		func(p path) bool { return !strings.HasPrefix(p.name, "outside → NodePort ") })
	client := l.Host("client")
	externalsBy(t, client, "172.18.0.3", "fc00:f853:ccd::3")
	for _, to := range outer() {
		for _, protocol := range []string{"tcp", "udp"} {
			ways = append(ways, path{"outside → external " + to.Addr().String() + " " + protocol, client, protocol, to})
		}
	}
	counted := func() (n uint64) {
		if r := mustReport(t, a).Redirect; r != nil {
			n = min(r.Requests, r.Replies)
		}
		return n
	}
	redirects := func(when string) {
		t.Helper()
		waitWell(t, a)
		sh(t, a, "conntrack -F 2>/dev/null")
		before := counted()
		works(t, ways, when)
		if n := counted() - before; n < 100 {
			t.Errorf("%s: %d packets were redirected", when, n)
		}
		if list := sh(t, a,
			"conntrack -L 2>/dev/null | grep -E 'dst=(172.18.0.3|fc00:f853:ccd::3) "+
				"[^d]*dport=300|dst=(203.0.113.|2001:db8:113::)' || true"); list != "" {
			t.Errorf("%s: the host tracks\n%s", when, list)
		}
	}
	redirects("at first")
	if out := sh(t, a, "hairpin probe metrics"); !strings.Contains(out,
		`hairpin_redirect_packets_total{packets="requests"}`) {
		t.Errorf("metrics are\n%s", out)
	}

	// detach detaches a program of a link.
	detach := func(name string) {
		t.Helper()
		noError(t, lab.Do(a.Host, func() error {
			dev, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			list, err := link.QueryPrograms(link.QueryOptions{Target: dev.Attrs().Index, Attach: ebpf.AttachTCXIngress})
			if err != nil || len(list.Programs) != 1 {
				return fmt.Errorf("programs of %s: %v: %w", name, list, err)
			}
			p, err := ebpf.NewProgramFromID(list.Programs[0].ID)
			if err != nil {
				return err
			}
			defer func() { _ = p.Close() }()
			return link.RawDetachProgram(link.RawDetachProgramOptions{Target: dev.Attrs().Index, Program: p,
				Attach: ebpf.AttachTCXIngress})
		}))
	}
	for _, name := range []string{"eth0", "br-ex"} {
		drift := part(t, mustReport(t, a), "redirect").Drift
		detach(name)
		eventually(t, 10*time.Second, "repair of "+name, func() (bool, string) {
			p := part(t, mustReport(t, a), "redirect")
			return p.InSync && p.Drift > drift, fmt.Sprintf("%+v", p)
		})
		redirects("after " + name + "'s program was detached")
	}

	replaceSwitch(t, a)
	redirects("after a restart of Open vSwitch")

	agentRestarts(t, a, ways)
	if p := part(t, mustReport(t, a), "redirect"); p.Applies != 0 {
		t.Errorf("the new agent changed what was in order: %+v", p)
	}

	for _, word := range []string{"nft", "redirect"} {
		switches(t, a, ways, "nodeport-path", word)
		if r := mustReport(t, a).Redirect; (r != nil) != (word == "redirect") {
			t.Errorf("switched to %s: counters are %v", word, r)
		}
	}
	redirects("switched on again")

	noError(t, a.Kill(t.Context(), agent, syscall.SIGTERM))
	out, err := a.Exec(t.Context(), "hairpin", "cleanup", "--config-file", settings, "--bin-dir", "/var/empty")
	t.Log(out)
	noError(t, err)
	target, err := redirect.New(redirect.Config{NetNS: a.Netns()})
	noError(t, err)
	defer target.Close()
	if s, err := target.Read(t.Context()); err != nil || len(s.Programs) > 0 {
		t.Errorf("after cleanup there are %v, %v", s.Programs, err)
	}
}

// TestRedirectSecondLink: where the bridge has the uplink, clients on another network of the node
// reach NodePorts by the redirect. In mode shared this also holds under policy Local, and then the
// endpoint sees the client's address.
func TestRedirectSecondLink(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{cluster.ModeShared, cluster.ModeLocal} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			l := startDemoIn(t, mode, "nodeport-path = redirect")
			a, client := l.Node("node-a"), l.Host("client")
			p := netip.MustParsePrefix
			noError(t, a.Join(t.Context(), "wire2", "eth1", p("10.10.10.3/24"), p("fd10::3/64")))
			noError(t, client.Join(t.Context(), "wire2", "eth1", p("10.10.10.100/24"), p("fd10::64/64")))
			eventually(t, 20*time.Second, "a program at eth1", func() (bool, string) {
				r := mustReport(t, a)
				return r.Redirect != nil, fmt.Sprintf("%+v", part(t, r, "redirect"))
			})
			waitServes(t, a)
			const podlocal, hostself, keeppod = 30001, 30003, 30020
			externalsBy(t, client, "10.10.10.3", "fd10::3")
			asked := outer()
			for _, port := range []uint16{podlocal, hostself, keeppod} {
				asked = append(asked, netip.AddrPortFrom(netip.MustParseAddr("10.10.10.3"), port),
					netip.AddrPortFrom(netip.MustParseAddr("fd10::3"), port))
			}
			for _, to := range asked {
				for _, protocol := range []string{"tcp", "udp"} {
					before := mustReport(t, a).Redirect.Requests
					got := lab.Get(t.Context(), client,
						probe.Request{Protocol: protocol, To: to, Timeout: 5 * time.Second})
					if got.Error != "" {
						t.Errorf("%s %s: %s", protocol, to, got.Error)
						continue
					}
					redirected := mustReport(t, a).Redirect.Requests > before
					own := got.Saw.Addr() == got.Client.Addr()
					if redirected != (to.Port() != keeppod || mode == cluster.ModeShared) ||
						own != (to.Port() == keeppod) {
						t.Errorf("%s %s: redirected: %t; the endpoint sees %s of %s", protocol, to, redirected, got.Saw,
							got.Client)
					}
				}
			}
		})
	}
}

// outer is Service outer of the demo at its external and load balancer addresses.
func outer() []netip.AddrPort {
	a := netip.MustParseAddrPort
	return []netip.AddrPort{a("203.0.113.10:80"), a("203.0.113.20:80"), a("[2001:db8:113::10]:80"),
		a("[2001:db8:113::20]:80")}
}

// externalsBy routes a client's packets to such addresses via a node's.
func externalsBy(t *testing.T, client *lab.Host, v4, v6 string) {
	t.Helper()
	for _, words := range [][]string{{"203.0.113.0/24", "via", v4}, {"2001:db8:113::/64", "via", v6}} {
		_, err := client.Exec(t.Context(), append([]string{"ip", "route", "replace"}, words...)...)
		noError(t, err)
	}
}
