package ofctl_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hairpin/apply/ofctl"
	"hairpin/datapath/ovs"
	"hairpin/lab"
)

// probes is a stream of UDP packets from the external network to the node's address, which the node
// sends back.
type probes struct {
	mu    sync.Mutex
	sent  []time.Time
	back  map[int]bool
	stop  context.CancelFunc
	tasks sync.WaitGroup
}

// guard hides eth0's frames from the kernel's own stack, because the userspace datapath reads them,
// too.
func guard(t testing.TB, n *lab.Node) {
	t.Helper()
	sh(t, n,
		`nft 'add table netdev guard; add chain netdev guard eth0 { type filter hook ingress device "eth0" priority -500; }; add rule netdev guard eth0 drop'`)
}

// interval is the time between two packets. Sockets buffer some hundred of them, in case the
// machine stalls for a while.
const interval = 5 * time.Millisecond

// startProbes sends a packet each interval until the test ends.
func startProbes(t testing.TB, l *lab.Lab, n *lab.Node) *probes {
	t.Helper()
	if n.Datapath() == "netdev" {
		guard(t, n)
	}
	address := n.Addresses()[0].Addr().String()
	var server net.PacketConn
	var client net.Conn
	err := n.Do(func() (err error) {
		server, err = net.ListenPacket("udp", address+":7000")
		return err
	})
	if err == nil {
		err = l.Host("underlay").Do(func() (err error) {
			client, err = net.Dial("udp", address+":7000")
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	c, stop := context.WithCancel(t.Context())
	p := &probes{back: map[int]bool{}, stop: stop}
	t.Cleanup(func() {
		stop()
		_ = server.Close()
		_ = client.Close()
		p.tasks.Wait()
	})
	p.tasks.Go(func() {
		b := make([]byte, 100)
		for {
			k, from, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(b[:k], from)
		}
	})
	p.tasks.Go(func() {
		b := make([]byte, 100)
		for c.Err() == nil {
			k, err := client.Read(b)
			if err != nil {
				continue // sending fails while the link is down
			}
			var i int
			if _, err := fmt.Sscan(string(b[:k]), &i); err == nil {
				p.mu.Lock()
				p.back[i] = true
				p.mu.Unlock()
			}
		}
	})
	p.tasks.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for i := 0; c.Err() == nil; i++ {
			p.mu.Lock()
			p.sent = append(p.sent, time.Now())
			p.mu.Unlock()
			_, _ = fmt.Fprint(client, i)
			<-tick.C
		}
	})
	p.answered(t)
	return p
}

// answered waits until a packet sent after the call comes back.
func (p *probes) answered(t testing.TB) {
	t.Helper()
	from := p.count()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		p.mu.Lock()
		for i := from; i < len(p.sent); i++ {
			if p.back[i] {
				p.mu.Unlock()
				return
			}
		}
		p.mu.Unlock()
	}
	t.Fatal("no packet comes back for 10 s")
}

func (p *probes) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sent)
}

// sends waits until further packets were sent, and returns the total number.
func (p *probes) sends(more int) int {
	for enough := p.count() + more; p.count() < enough; {
		time.Sleep(interval)
	}
	return p.count()
}

// lost returns how many packets, of those sent from number from on, did not come back, and the
// longest time without any. They come back in order, so a packet is lost if a later one is back.
func (p *probes) lost(t testing.TB, from int) (n int, longest time.Duration) {
	t.Helper()
	to := p.count()
	p.answered(t)
	return p.missing(from, to)
}

// missing counts packets that are not back yet.
func (p *probes) missing(from, to int) (n int, longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var since time.Time
	for i := from; i < to; i++ {
		if p.back[i] {
			since = time.Time{}
			continue
		}
		n++
		if since.IsZero() {
			since = p.sent[i]
		}
		longest = max(longest, p.sent[i].Sub(since))
	}
	return n, longest
}

// TestTakingABridgeLosesNothing checks that taking over a bridge in NORMAL mode loses no packet.
// Later changes between both modes may lose some: cached flows before and after conntrack are not
// removed at the same moment.
func TestTakingABridgeLosesNothing(t *testing.T) {
	l := lab.Start(t, lab.Config{})
	n := nodeIn(t, l)
	target := open(t, n)
	p := startProbes(t, l, n)
	from := p.count()
	reach(t, target, gateway(t))
	sh(t, n, `ovs-appctl revalidator/wait`)
	sent := p.count() - from
	if lost, longest := p.lost(t, from); lost > 0 {
		t.Fatalf("%d of %d packets lost, at most %v", lost, sent, longest)
	}
	t.Logf("0 of %d packets lost", sent)
	for range 3 {
		reach(t, target, ovs.State{Bridge: lab.GatewayBridge})
		p.answered(t)
		reach(t, target, gateway(t))
		p.answered(t)
	}
}

// gateway returns a part of a gateway bridge's State: the host's traffic passes conntrack.
func gateway(t testing.TB) ovs.State {
	s := parse(t, gatewayFlows)
	s.Settings = rich(t).Settings
	return s
}

const gatewayFlows = `
cookie=0xdeff105,table=0,priority=100,ip,in_port=LOCAL actions=ct(commit,zone=64000,exec(set_field:0x2->ct_mark)),output:eth0
cookie=0xdeff105,table=0,priority=50,ip,in_port=eth0 actions=ct(table=1,zone=64000,nat)
cookie=0xdeff105,table=0,priority=0 actions=NORMAL
cookie=0xdeff105,table=1,priority=100,ct_state=+est+trk,ct_mark=0x2,ip actions=LOCAL
cookie=0xdeff105,table=1,priority=10,ip actions=LOCAL
`

// ovn starts a node with all daemons and a logical switch that ovn-controller connects to the
// gateway bridge.
func ovn(t testing.TB, l *lab.Lab) *lab.Node {
	t.Helper()
	n := l.Add(t, lab.NodeConfig{})
	sh(t, n,
		`ovs-vsctl set Open_vSwitch . external_ids:ovn-remote=unix:/run/ovn/ovnsb_db.sock external_ids:ovn-encap-type=geneve \
			external_ids:ovn-encap-ip=172.18.0.3 external_ids:ovn-bridge-datapath-type=`+n.Datapath()+` external_ids:ovn-bridge-mappings=physnet:br-ex
		ovn-nbctl ls-add ext -- lsp-add ext br-ex_node-a -- lsp-set-type br-ex_node-a localnet -- lsp-set-addresses br-ex_node-a unknown \
			-- lsp-set-options br-ex_node-a network_name=physnet
		ovn-nbctl --wait=hv --timeout=20 sync`)
	return n
}

// TestSwitchRestartsUnderTraffic checks the complete recovery from a crash, as the agent does it.
func TestSwitchRestartsUnderTraffic(t *testing.T) {
	l := lab.Start(t, lab.Config{})
	n := ovn(t, l)
	target := open(t, n)
	want := gateway(t)
	reach(t, target, want)
	if restarted, err := target.Restarted(ctx(t)); err != nil || !restarted {
		t.Fatalf("a switch that was never released: %v, %v", restarted, err)
	}
	if err := target.Release(ctx(t), time.Second); err != nil {
		t.Fatal(err)
	}
	quiet(t, target)
	p := startProbes(t, l, n)

	t.Run("flow-restore-wait does nothing to a running switch",
		func(t *testing.T) { waitIsIgnored(t, n, target, p, want) })
	t.Run("SIGKILL", func(t *testing.T) { restartUnder(t, n, target, p, want, syscall.SIGKILL) })
	t.Run("SIGTERM", func(t *testing.T) { restartUnder(t, n, target, p, want, syscall.SIGTERM) })
}

func waitIsIgnored(t *testing.T, n *lab.Node, target *ofctl.Target, p *probes, want ovs.State) {
	if got := strings.TrimSpace(sh(t, n,
		`ovs-vsctl get Open_vSwitch . other_config:flow-restore-wait`)); got != `"true"` {
		t.Fatalf("flow-restore-wait is %s", got)
	}
	from := p.count()
	// Everything that makes the switch recompute: other flows, a port, no cached flows.
	reach(t, target, ovs.State{Bridge: lab.GatewayBridge})
	sh(t, n,
		`ovs-vsctl add-port br-ex x -- set Interface x type=internal; ovs-appctl dpctl/del-flows; ovs-vsctl del-port x`)
	reach(t, target, want)
	sh(t, n, `ovs-appctl dpctl/del-flows`)
	p.answered(t)
	lost, longest := p.lost(t, from)
	t.Logf("%d packets lost, at most %v", lost, longest.Round(interval))
}

func restartUnder(t *testing.T, n *lab.Node, target *ofctl.Target, p *probes, want ovs.State, sig syscall.Signal) {
	from, start := p.count(), time.Now()
	step := func(what string) { t.Logf("%4d ms: %s", time.Since(start).Milliseconds(), what) }
	if err := n.Restart(ctx(t), lab.VSwitchd, sig); err != nil {
		t.Fatal(err)
	}
	step("ovs-vswitchd is back")
	if restarted, err := target.Restarted(ctx(t)); err != nil || !restarted {
		t.Fatalf("Restarted after a restart: %v, %v", restarted, err)
	}
	if err := target.ReconnectController(ctx(t)); err != nil {
		t.Fatal(err)
	}
	until(t, target, "the flows come back", func(s ovs.State, err error) bool {
		return err == nil && target.Apply(ctx(t), ovs.Diff(want, s)) == nil
	})
	step("flows of br-ex are back")
	sh(t, n, `ovn-nbctl --wait=hv --timeout=20 sync`)
	step("flows of br-int are back")
	if flows := sh(t, n, `ovs-ofctl dump-flows br-int | wc -l`); len(strings.TrimSpace(flows)) < 2 {
		t.Fatalf("br-int has %s flows", flows)
	}
	if err := target.Release(ctx(t), time.Second); err != nil {
		t.Fatal(err)
	}
	// The host's earlier packets left unresolved neighbours, retried only after a second.
	sh(t, n, `ip neigh flush dev br-ex nud incomplete nud failed`)
	step("released")
	p.answered(t)
	step("a packet came back")
	if restarted, err := target.Restarted(ctx(t)); err != nil || restarted {
		t.Fatalf("Restarted after Release: %v, %v", restarted, err)
	}
	after := p.count()
	lost, longest := p.lost(t, from)
	t.Logf("%d packets lost, at most %v", lost, longest.Round(interval)) // longer on a busy machine
	if lost, _ := p.lost(t, after); lost > 0 {
		t.Errorf("%d packets lost afterwards", lost)
	}
	if d := ovs.Diff(want, read(t, target)); !d.Empty() {
		t.Fatalf("after the restart: %+v", d)
	}
}

// TestSwitchWaitsForRelease checks that without Release nothing is forwarded after a restart:
// ovs-vswitchd reads the key at its start, however old it is.
func TestSwitchWaitsForRelease(t *testing.T) {
	l := lab.Start(t, lab.Config{})
	n := nodeIn(t, l)
	target := open(t, n)
	reach(t, target, gateway(t))
	if err := target.Keep(ctx(t), time.Second); err != nil {
		t.Fatal(err)
	}
	p := startProbes(t, l, n)
	if err := n.Restart(ctx(t), lab.VSwitchd, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	reachAgain(t, target, gateway(t))
	from := p.count()
	to := p.sends(50)
	p.sends(20) // earlier ones would be back by now
	if lost, _ := p.missing(from, to); lost < to-from {
		t.Fatalf("only %d of %d packets are kept back", lost, to-from)
	}
	if err := target.Release(ctx(t), 0); err != nil {
		t.Fatal(err)
	}
	p.answered(t)
	if got := sh(t, n,
		`ovs-vsctl --if-exists get Open_vSwitch . other_config:flow-restore-wait`); strings.TrimSpace(got) != "" {
		t.Fatalf("flow-restore-wait is still %s", got)
	}
}

func reachAgain(t testing.TB, target *ofctl.Target, want ovs.State) {
	t.Helper()
	until(t, target, "the flows come back", func(s ovs.State, err error) bool {
		return err == nil && target.Apply(ctx(t), ovs.Diff(want, s)) == nil
	})
}
