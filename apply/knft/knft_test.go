package knft_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/apply"
	"hairpin/apply/applytest"
	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/apply/knft"
	"hairpin/cluster"
	"hairpin/datapath/nft"
	"hairpin/datapath/nft/nfttest"
	"hairpin/image"
)

// system is a network namespace, and the nft to use in it.
type system struct {
	ns  string
	nft []string
}

// each runs a test with the nft of this machine and with that of the node image, if present.
func each(t *testing.T, test func(*testing.T, system)) {
	commands := map[string][]string{"nft of this machine": {"nft"}}
	if root := filepath.Join(image.DefaultDir, "image"); exists(filepath.Join(root, "usr/sbin/nft")) {
		commands["nft of the node image"] = []string{"chroot", root, "nft"}
	}
	for name, command := range commands {
		t.Run(name, func(t *testing.T) { test(t, system{insidetest.NetNS(t), command}) })
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (s system) target(t testing.TB) *knft.Target {
	t.Helper()
	target, err := knft.New(knft.Config{NetNS: s.ns, Command: s.nft, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	return target
}

// run runs a command in the namespace.
func (s system) run(t testing.TB, input string, args ...string) string {
	t.Helper()
	var out []byte
	err := inside.Do(s.ns, func() error {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdin = strings.NewReader(input)
		var err error
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// hand runs nft commands as another program.
func (s system) hand(t testing.TB, commands string) string {
	t.Helper()
	return s.run(t, commands, slices.Concat(s.nft, []string{"-f", "-"})...)
}

func example(t testing.TB) nft.State {
	t.Helper()
	text, err := os.ReadFile("../../datapath/nft/testdata/want.nft")
	if err != nil {
		t.Fatal(err)
	}
	s, err := nft.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLaws(t *testing.T) {
	each(t, func(t *testing.T, s system) {
		s.run(t, "", "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "wire")
		spoil := func(commands string) func(testing.TB) {
			return func(t testing.TB) { s.hand(t, commands) }
		}
		applytest.Laws(t, applytest.Harness[nft.State, nft.Delta]{
			New:  func(t testing.TB) apply.Target[nft.State, nft.Delta] { return s.target(t) },
			Diff: nft.Diff, Print: nft.Print, States: nfttest.States(),
			Foreign: func(t testing.TB) func() string {
				s.hand(t,
					"add table inet other\nadd map inet other nodeports4 { type inet_proto . inet_service : "+
						"ipv4_addr . inet_service ; }\n"+
						"add element inet other nodeports4 { tcp . 30080 : 192.0.2.1 . 1 }\nadd table ip other\nadd "+
						"chain ip other prerouting { type nat hook prerouting priority -100; }\n"+
						"add rule ip other prerouting ip daddr 192.0.2.7 dnat to 192.0.2.8\nadd table netdev "+
						"other\nadd chain netdev other c { type filter hook ingress device eth0 priority 0; }\n")
				return func() string {
					return s.hand(t, "list table inet other") + s.hand(t, "list table ip other") +
						s.hand(t, "list table netdev other")
				}
			},
			Rich: example(t),
			Spoils: map[string]func(testing.TB){
				"element deleted": spoil("delete element inet hairpin nodeports4 { tcp . 30080 }"),
				"element added":   spoil("add element inet hairpin nodeports4 { tcp . 1 : 192.0.2.1 . 1 }"),
				"element changed": spoil("delete element inet hairpin nodeports6 { tcp . 30080 }\nadd element " +
					"inet hairpin nodeports6 { tcp . 30080 : ::1 . 80 }"),
				"element without owner": spoil("delete element inet hairpin nodeports6 { tcp . 30080 }\nadd element " +
					"inet hairpin nodeports6 { tcp . 30080 : fd00:10:96::80 . 80 }"),
				"map flushed":   spoil("flush map inet hairpin nodeports4"),
				"chain flushed": spoil("flush chain inet hairpin postrouting"),
				"chain deleted": spoil("flush chain inet hairpin output\ndelete chain inet hairpin output"),
				"guard deleted": spoil("flush chain netdev hairpin guard\ndelete chain netdev hairpin guard"),
				"rule inserted": spoil("insert rule inet hairpin prerouting counter accept"),
				"unknown rule":  spoil("insert rule inet hairpin prerouting ct state established,related accept"),
				"unknown chain": spoil("add chain inet hairpin closed { type filter hook input " +
					"priority 0; policy drop; }"),
				"unknown map": spoil("add map inet hairpin verdicts { type ipv4_addr : verdict ; elements " +
					"= { 192.0.2.1 : drop } ; }"),
				"chain of others":    spoil("add chain inet hairpin mine"),
				"table deleted":      spoil("delete table inet hairpin"),
				"everything deleted": spoil("flush ruleset"),
			},
			Refused: func(t testing.TB) nft.Delta {
				rich := example(t)
				bad := example(t)
				bad[nft.Inet].Maps["nodeports4"].Elements.Put(nft.Element{Protocol: cluster.TCP, Port: 1},
					nft.Target{Addr: netip.MustParseAddrPort("10.96.0.1:1")})
				c := bad[nft.Inet].Chains["prerouting"]
				c.Rules = append(slices.Clone(c.Rules), nft.Rule{Do: nft.SNAT{Addr: netip.MustParseAddr("10.0.0.1")}})
				return nft.Diff(bad, rich)
			},
			Atomic: true,
		})
	})
}

// TestOwnChangesAreNotTold checks that own changes and those of foreign tables cause no signal, and
// that others' changes of Hairpin's tables do.
func TestOwnChangesAreNotTold(t *testing.T) {
	each(t, func(t *testing.T, s system) {
		target := s.target(t)
		have, want := nft.State{}, example(t)
		for i := range 20 {
			elements := want[nft.Inet].Maps["nodeports4"].Elements.Clone()
			elements.Put(nft.Element{Protocol: cluster.TCP, Port: uint16(1000 + i)},
				nft.Target{Addr: netip.MustParseAddrPort("10.96.0.1:1")})
			next := example(t)
			next[nft.Inet].Maps["nodeports4"].Elements = elements
			if i/2%2 == 1 { // every second change includes rules and so uses nft; the others use netlink
				next[nft.Inet].Chains["output"].Rules = nil
			}
			if err := target.Apply(t.Context(), nft.Diff(next, have)); err != nil {
				t.Fatal(err)
			}
			have = next
			// a foreign table
			s.hand(t, "add table inet other\nadd chain inet other c\nadd rule inet other c accept\n")
		}
		select {
		case <-target.Changed():
			t.Error("own changes, or those of foreign tables, are told")
		case <-time.After(300 * time.Millisecond):
		}
		s.hand(t, "delete element inet hairpin nodeports4 { tcp . 1019 }")
		select {
		case <-target.Changed():
		case <-time.After(10 * time.Second):
			t.Error("a change of others is not told within 10 s")
		}
	})
}

// TestReadAhead checks that the next Read returns what was read ahead, without nft and only once,
// unless another program wrote meanwhile.
func TestReadAhead(t *testing.T) {
	each(t, func(t *testing.T, s system) {
		program := s.nft
		runs := filepath.Join(t.TempDir(), "runs")
		s.nft = slices.Concat([]string{"sh", "-c", "touch " + runs + `; exec "$@"`, "sh"}, program)
		target := s.target(t)
		counted := func(read func(context.Context) (nft.State, error)) (string, bool) {
			_ = os.Remove(runs)
			tables, err := read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return nft.Print(tables), exists(runs)
		}
		hand := system{s.ns, program}
		hand.hand(t, "add table inet hairpin\nadd chain inet hairpin one\n")
		first, _ := counted(target.ReadAhead)
		if text, ran := counted(target.Read); text != first || ran {
			t.Errorf("after a look ahead, nft ran (%t), and there is\n%s\ninstead of\n%s", ran, text, first)
		}
		if _, ran := counted(target.Read); !ran {
			t.Error("what was read ahead was given twice")
		}
		counted(target.ReadAhead)
		hand.hand(t, "add chain inet hairpin two\n")
		if text, ran := counted(target.Read); !ran || !strings.Contains(text, "chain two") {
			t.Errorf("after a transaction, nft ran (%t), and there is\n%s", ran, text)
		}
	})
}

// TestChangeDuringApply checks that a change by another program between two of Hairpin's is never
// lost, by nft or by netlink.
func TestChangeDuringApply(t *testing.T) {
	element, rules := example(t), example(t)
	element[nft.Inet].Maps["nodeports4"].Elements.Put(nft.Element{Protocol: cluster.TCP, Port: 7},
		nft.Target{Addr: netip.MustParseAddrPort("10.96.0.1:1")})
	rules[nft.Inet].Chains["output"].Rules = nil
	t.Run("elements", func(t *testing.T) { changeDuringApply(t, element) })
	t.Run("rules", func(t *testing.T) { changeDuringApply(t, rules) })
}

func changeDuringApply(t *testing.T, other nft.State) {
	s := system{insidetest.NetNS(t), []string{"nft"}}
	target := s.target(t)
	want := example(t)
	if err := target.Apply(t.Context(), nft.Diff(want, nft.State{})); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	applied := make(chan error, 1)
	go func() {
		defer close(applied)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := target.Apply(context.Background(), nft.Diff(other, want)); err != nil {
				applied <- err
				return
			}
			if err := target.Apply(context.Background(), nft.Diff(want, other)); err != nil {
				applied <- err
				return
			}
		}
	}()
	for i := range 20 {
		select {
		case <-target.Changed():
		default:
		}
		s.hand(t, fmt.Sprintf("add element inet hairpin nodeports4 { udp . %d : 192.0.2.1 . 1 }", 1+i))
		select {
		case <-target.Changed():
		case <-time.After(10 * time.Second):
			t.Fatalf("change %d of others is not told within 10 s", i)
		}
	}
	close(stop)
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
}

// TestDeviceMadeAnew checks that the guard of a device works again after the device was recreated.
func TestDeviceMadeAnew(t *testing.T) {
	each(t, func(t *testing.T, s system) {
		target := s.target(t)
		want := example(t)
		reach := func() error {
			have, err := target.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return target.Apply(t.Context(), nft.Diff(want, have))
		}
		if err := reach(); err != nil {
			if _, waits := err.(*apply.Waiting); !waits {
				t.Fatal(err)
			}
			t.Logf("this kernel has no chains of missing devices: %v", err)
		}
		for range 3 {
			s.run(t, "", "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "wire")
			deadline := time.Now().Add(10 * time.Second)
			for err := reach(); err != nil; err = reach() {
				select {
				case <-target.Changed():
				case <-time.After(time.Until(deadline)):
					t.Fatalf("the device is there, and still: %v", err)
				}
			}
			s.run(t, "", "sh", "-ec",
				"sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1; ip link set wire up; ip link set eth0 up; ip addr "+
					"add 192.0.2.1/24 dev eth0")
			if !s.dropped(t) {
				t.Error("the guard does not drop")
			}
			s.run(t, "", "ip", "link", "del", "eth0")
		}
	})
}

// TestMissingDeviceOnOldKernel checks that only the chain waits for its device. It is lost with the
// device (the test deletes it where the kernel does not).
func TestMissingDeviceOnOldKernel(t *testing.T) {
	s := system{insidetest.NetNS(t), []string{"nft"}}
	target := s.target(t)
	if err := target.AsOnOldKernel(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := example(t)
	left := func() nft.Delta {
		t.Helper()
		have, err := target.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return nft.Diff(want, have)
	}
	told := func(what string) {
		t.Helper()
		select {
		case <-target.Changed():
		case <-time.After(10 * time.Second):
			t.Fatalf("%s is not told within 10 s", what)
		}
	}
	for range 2 {
		err := target.Apply(t.Context(), left())
		var waits *apply.Waiting
		if !errors.As(err, &waits) || !slices.Equal(waits.Devices, []string{"eth0"}) {
			t.Fatalf("without the device, Apply gives error %v", err)
		}
		if d := left(); d.Count() != 1 || d.Tables[nft.Netdev].Chains.Add["guard"] == nil {
			t.Fatalf("without the device, what is left is not the guard alone:\n%s", d)
		}
		s.run(t, "", "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "wire")
		told("the device")
		if err := target.Apply(t.Context(), left()); err != nil {
			t.Fatal(err)
		}
		if d := left(); !d.Empty() {
			t.Fatalf("left over:\n%s", d)
		}
		s.run(t, "", "ip", "link", "del", "eth0")
		told("the end of the device")
		if left().Empty() { // a newer kernel keeps the chain
			s.hand(t, "flush chain netdev hairpin guard\ndelete chain netdev hairpin guard")
			told("the end of the chain")
		}
	}
}

// dropped reports whether frames that arrive at eth0 end in the guard: a chain before it counts
// them, and one after it does not. They belong to the peer's neighbour discovery.
func (s system) dropped(t testing.TB) bool {
	t.Helper()
	s.hand(t, `add table netdev probe
delete table netdev probe
add table netdev probe
add chain netdev probe before { type filter hook ingress device eth0 priority -600; }
add chain netdev probe after { type filter hook ingress device eth0 priority 500; }
add rule netdev probe before counter
add rule netdev probe after counter`)
	counts := func(chain string) bool {
		out := s.run(t, "", slices.Concat(s.nft, []string{"list", "chain", "netdev", "probe", chain})...)
		return strings.Contains(out, "counter packets") && !strings.Contains(out, "packets 0")
	}
	for deadline := time.Now().Add(20 * time.Second); !counts("before"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no frame arrives")
		}
	}
	return !counts("after")
}

func TestVersion(t *testing.T) {
	s := system{ns: insidetest.NetNS(t), nft: []string{"sh", "-c", "echo 'nftables v1.0.2 (Lester Gooch)'"}}
	version, err := s.target(t).Version(t.Context())
	if err == nil {
		err = knft.CheckVersion(version)
	}
	if err == nil || err.Error() != "nft 1.0.2 is running; 1.0.6 or newer is needed" {
		t.Errorf("an old nft gives error %v", err)
	}
	s.nft = []string{"/nowhere/nft"}
	if _, err := s.target(t).Version(t.Context()); err == nil || !strings.Contains(err.Error(), "/nowhere/nft") {
		t.Errorf("a missing nft gives error %v", err)
	}
}

// TestSlowAtFirst checks that a missing reply of nft is not taken as a missing feature.
func TestSlowAtFirst(t *testing.T) {
	slow := filepath.Join(t.TempDir(), "slow")
	if err := os.WriteFile(slow, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// Another process holds its output open.
	s := system{insidetest.NetNS(t), []string{"sh", "-c", `[ ! -e "$0" ] || sleep 3 & exec nft "$@"`, slow}}
	target := s.target(t)
	if _, err := target.Read(t.Context()); !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatalf("a slow nft gives error %v", err)
	}
	if err := os.Remove(slow); err != nil {
		t.Fatal(err)
	}
	want := example(t)
	if err := target.Apply(t.Context(), nft.Diff(want, nft.State{})); err != nil {
		t.Fatal(err)
	}
	have, err := target.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := nft.Diff(want, have); !d.Empty() {
		t.Errorf("missing:\n%s", d)
	}
}
