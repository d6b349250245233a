package redirect_test

import (
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/apply"
	"hairpin/apply/applytest"
	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	program "hairpin/apply/redirect"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/redirect"
	"hairpin/datapath/redirect/redirecttest"
)

// system is a network namespace with links, and a hook to attach programs there.
type system struct {
	ns     string
	clsact bool
}

func (s system) target(t testing.TB) apply.Target[redirect.State, redirect.Delta] {
	t.Helper()
	target, err := program.New(program.Config{NetNS: s.ns, Clsact: s.clsact})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	return target
}

func (s system) do(t testing.TB, f func() error) {
	t.Helper()
	if err := inside.Do(s.ns, f); err != nil {
		t.Fatal(err)
	}
}

func (s system) run(t testing.TB, args ...string) (out string) {
	t.Helper()
	s.do(t, func() error {
		b, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if out = string(b); err != nil {
			return fmt.Errorf("%q: %w: %s", args, err, out)
		}
		return nil
	})
	return out
}

// each runs a test with tcx and with clsact.
func each(t *testing.T, test func(*testing.T, system)) {
	for name, clsact := range map[string]bool{"tcx": false, "clsact": true} {
		t.Run(name, func(t *testing.T) {
			s := system{insidetest.NetNS(t), clsact}
			for _, l := range append(redirecttest.Links(), redirecttest.Bridges()...) {
				s.run(t, "ip", "link", "add", l, "type", "veth", "peer", "name", l+"-peer")
			}
			test(t, s)
		})
	}
}

// nothing loads a program that passes all packets.
func nothing(t testing.TB, name string) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}, License: "GPL"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func index(name string) (int, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return 0, err
	}
	return l.Attrs().Index, nil
}

// foreign attaches a foreign program beside Hairpin's, with one of its names, by both hooks. It
// returns a function that prints all foreign programs.
func (s system) foreign(t testing.TB) func() string {
	p := nothing(t, claims.ProgramRequest)
	const dev = "nic0"
	s.do(t, func() error {
		i, err := index(dev)
		if err != nil {
			return err
		}
		if err := link.RawAttachProgram(link.RawAttachProgramOptions{Target: i, Program: p,
			Attach: ebpf.AttachTCXIngress}); err != nil {
			return err
		}
		_ = netlink.QdiscAdd(&netlink.GenericQdisc{QdiscType: "clsact",
			// may exist already
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: i, Handle: netlink.MakeHandle(0xffff, 0),
				Parent: netlink.HANDLE_CLSACT}})
		return netlink.FilterAdd(&netlink.BpfFilter{Fd: p.FD(), Name: "foreign", DirectAction: true,
			FilterAttrs: netlink.FilterAttrs{LinkIndex: i, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1,
				Protocol: unix.ETH_P_ALL}})
	})
	return func() string {
		var out strings.Builder
		s.do(t, func() error {
			i, err := index(dev)
			if err != nil {
				return err
			}
			list, err := link.QueryPrograms(link.QueryOptions{Target: i, Attach: ebpf.AttachTCXIngress})
			if err != nil {
				return err
			}
			info, err := p.Info()
			if err != nil {
				return err
			}
			id, _ := info.ID()
			for _, x := range list.Programs {
				if x.ID == id {
					fmt.Fprintln(&out, "tcx", id)
				}
			}
			return nil
		})
		for _, l := range strings.Split(s.run(t, "tc", "filter", "show", "dev", dev, "ingress"), "\n") {
			if strings.Contains(l, "pref 1 ") {
				out.WriteString(l + "\n")
			}
		}
		return out.String()
	}
}

// rich returns a State with both programs.
func rich() redirect.State {
	o := cluster.Owner{Kind: "Node", Name: "node-a"}
	return redirect.State{
		Programs: map[string]redirect.Program{
			"nic0": {Link: "nic0", Name: claims.ProgramRequest, Owner: o},
			"nic1": {Link: "nic1", Name: claims.ProgramRequest, Owner: o},
			"br-a": {Link: "br-a", Name: claims.ProgramReply, MAC: cluster.MAC{2, 1}, MTU: 1400, Owner: o},
		},
		Services: map[redirect.Service]redirect.Path{
			{Addr: netip.MustParseAddrPort("192.0.2.2:30080"), Protocol: cluster.TCP}:        {Owner: o},
			{Addr: netip.MustParseAddrPort("[2001:db8:1::2]:30080"), Protocol: cluster.SCTP}: {Tracked: true, Owner: o},
		},
	}
}

func TestLaws(t *testing.T) {
	each(t, func(t *testing.T, s system) {
		spoils := map[string]func(testing.TB){
			"a NIC is another one": func(t testing.TB) {
				s.run(t, "ip", "link", "del", "nic0")
				s.run(t, "ip", "link", "add", "nic0", "type", "veth", "peer", "name", "nic0-peer")
			},
			"the bridge is another one": func(t testing.TB) {
				s.run(t, "ip", "link", "del", "br-a")
				s.run(t, "ip", "link", "add", "br-a", "type", "veth", "peer", "name", "br-a-peer")
			},
			"a program is detached": func(t testing.TB) {
				if s.clsact {
					s.run(t, "tc", "filter", "del", "dev", "nic1", "ingress", "pref", fmt.Sprint(claims.FilterPriority))
					return
				}
				s.do(t, func() error {
					i, err := index("nic1")
					if err != nil {
						return err
					}
					list, err := link.QueryPrograms(link.QueryOptions{Target: i, Attach: ebpf.AttachTCXIngress})
					if err != nil {
						return err
					}
					p, err := ebpf.NewProgramFromID(list.Programs[0].ID)
					if err != nil {
						return err
					}
					return link.RawDetachProgram(link.RawDetachProgramOptions{Target: i, Program: p,
						Attach: ebpf.AttachTCXIngress})
				})
			},
		}
		if s.clsact {
			spoils["the discipline is gone"] = func(t testing.TB) {
				s.run(t, "tc", "qdisc", "del", "dev", "br-a",
					"clsact")
			}
		}
		applytest.Laws(t, applytest.Harness[redirect.State, redirect.Delta]{
			New:  func(t testing.TB) apply.Target[redirect.State, redirect.Delta] { return s.target(t) },
			Diff: redirect.Diff, Print: redirect.Print, States: redirecttest.States(), Rich: rich(), Foreign: s.foreign,
			Spoils: spoils,
			Refused: func(testing.TB) redirect.Delta {
				more := rich()
				more.Programs = maps.Clone(more.Programs)
				more.Programs["not-there"] = redirect.Program{Link: "not-there", Name: claims.ProgramRequest}
				return redirect.Diff(more, rich())
			},
			Atomic: true,
		})
	})
}

// TestFormerRun checks that the first Read finds programs of a previous run, which can then be
// removed. If there are none, later Reads query no link.
func TestFormerRun(t *testing.T) {
	each(t, func(t *testing.T, s system) {
		former := s.target(t)
		if err := former.Apply(t.Context(), redirect.Diff(rich(), redirect.State{})); err != nil {
			t.Fatal(err)
		}
		now := s.target(t)
		found, err := now.Read(t.Context())
		if err != nil || !redirect.Diff(rich(), found).Empty() {
			t.Fatalf("found %s, %v", redirect.Print(found), err)
		}
		if err := now.Apply(t.Context(), redirect.Diff(redirect.State{}, found)); err != nil {
			t.Fatal(err)
		}
		for _, target := range []apply.Target[redirect.State, redirect.Delta]{now, s.target(t)} {
			for range 2 {
				if left, err := target.Read(t.Context()); err != nil || len(left.Programs) > 0 {
					t.Errorf("left %s, %v", redirect.Print(left), err)
				}
			}
		}
	})
}

// BenchmarkReadNothing measures a Read on a node with many links, where no program was ever wanted.
func BenchmarkReadNothing(b *testing.B) {
	s := system{ns: insidetest.NetNS(b)}
	for i := range 100 {
		s.run(b, "ip", "link", "add", fmt.Sprintf("pod%d", i), "type", "veth", "peer", "name", fmt.Sprintf("peer%d", i))
	}
	target := s.target(b)
	for b.Loop() {
		if _, err := target.Read(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
