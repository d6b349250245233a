package agent_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/lab"
)

// everything prints all state that an agent writes, without what changes by itself (counters,
// times, learned flows). It includes what changes if the same is written again: versions of rows,
// handles of nft, numbers of flows' cookies. It leaves out the number by which a starting agent
// asks whether OVN's flows lead to its pods (nb_cfg): OVN's tools increment it, too.
const everything = `
for db in ovn/ovnnb_db.sock:OVN_Northbound ovn/ovnsb_db.sock:OVN_Southbound; do
	for table in $(ovsdb-client -f csv --no-headings list-tables unix:/run/${db%:*} ${db#*:}); do
		case $table in SB_Global|Chassis_Private|MAC_Binding|FDB|Learned_Route) continue;; esac
		echo "== $table"
		if [ $table = NB_Global ]; then
			ovsdb-client -f csv dump unix:/run/${db%:*} ${db#*:} $table _uuid name options external_ids ipsec
			continue
		fi
		ovsdb-client -f csv dump unix:/run/${db%:*} ${db#*:} $table
		ovsdb-client -f csv dump unix:/run/${db%:*} ${db#*:} $table _uuid _version
	done
done
for table in "Open_vSwitch _version" "Bridge name other_config external_ids ports" "Port name _version" "Interface name type options external_ids mac mtu_request"; do
	echo "== $table"
	ovsdb-client -f csv dump unix:/run/openvswitch/db.sock Open_vSwitch $table | sed 's/ovn-nb-cfg\(-ts\)\?=""[0-9]*""//g'
done
for bridge in $(ovs-vsctl list-br); do # before the first start of an agent only br-ex
	ovs-ofctl --no-stats dump-flows $bridge | sed '/cookie=0xdee....,\|table=\(66\|67\|79\),/d' # of sessions, and of MACs that OVN learns
	ovs-ofctl -O OpenFlow15 dump-groups $bridge | sed /^OFPST/d | sort
done
nft --stateless --handle list ruleset
ip -d route show table all | grep -v "^fe80\|^multicast"
ip -6 -d route show table all | grep -v "^fe80\|^multicast" | sed 's/expires [0-9a-z]*//'
ip rule; ip -6 rule
ip -d address show | sed 's/valid_lft .*//'
ip neighbor show nud permanent
sysctl net.ipv4.ip_forward net.ipv4.conf net.ipv6.conf 2>/dev/null || true # some cannot be read`

// restartUnchanged restarts the agent of a node: it reads, and writes nothing.
func restartUnchanged(t *testing.T, n *lab.Node, sig syscall.Signal) {
	before := lines(sh(t, n, everything))
	if len(before) < 1000 {
		t.Fatalf("only %d lines to compare", len(before))
	}
	begin := time.Now()
	if err := n.Restart(t.Context(), agent, sig); err != nil {
		t.Fatal(err)
	}
	waitWell(t, n)
	took := time.Since(begin)
	atRest(t, n)
	for _, p := range mustReport(t, n).Parts {
		t.Logf("%s: %d reads, %d applies, %d written, drift %d, %d errors", p.System, p.Reads, p.Applies, p.Written,
			p.Drift, p.Errors)
		if p.Reads == 0 || p.Applies != 0 || p.Written != 0 || p.Drift != 0 || p.Errors != 0 {
			t.Errorf("%+v", p)
		}
	}
	after := lines(sh(t, n, everything))
	t.Logf("in order after %d ms; %d lines compared", took.Milliseconds(), len(after))
	for _, l := range difference(before, after) {
		t.Error(l)
	}
	// A flow that was written again would have a small duration.
	for _, f := range lines(sh(t, n,
		`for bridge in br-ex br-svc br-tun; do ovs-ofctl dump-flows $bridge cookie=0xdeff105/0xffffffff; done`)) {
		_, rest, ok := strings.Cut(f, "duration=")
		if !ok {
			continue
		}
		text, _, _ := strings.Cut(rest, "s,")
		age, err := strconv.ParseFloat(text, 64)
		if err != nil || age < time.Since(begin).Seconds() {
			t.Errorf("is %s s old: %s", text, f)
		}
	}
}

func lines(s string) []string { return strings.Split(strings.TrimSuffix(s, "\n"), "\n") }

// difference returns the lines that only one of two lists has.
func difference(before, after []string) (out []string) {
	was, is := map[string]bool{}, map[string]bool{}
	for _, l := range before {
		was[l] = true
	}
	for _, l := range after {
		if is[l] = true; !was[l] {
			out = append(out, "+ "+l)
		}
	}
	for _, l := range before {
		if !is[l] {
			out = append(out, "- "+l)
		}
	}
	return out
}

// work has the counters of an agent.
func work(t testing.TB, n *lab.Node) string {
	t.Helper()
	var s strings.Builder
	for _, p := range mustReport(t, n).Parts {
		fmt.Fprintf(&s, "%s: %d reads, %d applies, %d errors; ", p.System, p.Reads, p.Applies, p.Errors)
	}
	return s.String()
}

// atRest waits until an agent has been idle for half a second, and the kernel, too.
func atRest(t testing.TB, n *lab.Node) {
	t.Helper()
	last, since := work(t, n), time.Now()
	eventually(t, 20*time.Second, n.Name()+" is at rest", func() (bool, string) {
		time.Sleep(50 * time.Millisecond)
		busy := unsettled(t, n)
		if now := work(t, n) + busy; now != last || busy != "" {
			last, since = now, time.Now()
		}
		return time.Since(since) > 500*time.Millisecond, last
	})
}

// unsettled lists tentative IPv6 addresses, for which duplicate address detection takes a second,
// and incomplete neighbor entries. The agent makes the kernel resolve the MACs of routers.
func unsettled(t testing.TB, n *lab.Node) string {
	t.Helper()
	return sh(t, n, "ip -6 address show tentative; ip neighbor show nud incomplete")
}

// kernelAtRest waits until no address is tentative and no neighbor entry is incomplete. The node's
// agent need not run.
func kernelAtRest(t testing.TB, n *lab.Node) {
	t.Helper()
	eventually(t, 10*time.Second, "the kernel is at rest", func() (bool, string) {
		left := unsettled(t, n)
		return left == "", left
	})
}

// quiet sends requests to an idle agent: it runs a round before each reply, and does nothing.
func quiet(t *testing.T, n *lab.Node) {
	atRest(t, n)
	before := work(t, n)
	for range 100 {
		if after := work(t, n); after != before {
			t.Fatalf("it was %s\nand is %s", before, after)
		}
	}
}

// BenchmarkQuiet measures the cost of an idle agent, in percent of a core.
func BenchmarkQuiet(b *testing.B) {
	_, n := alone(b)
	giveManifests(b, n)
	start(b, n)
	waitWell(b, n)
	atRest(b, n)
	for b.Loop() {
		const watched = 5 * time.Second
		used := cpuTime(b, n, agent)
		time.Sleep(watched) // the measured time
		b.ReportMetric(100*(cpuTime(b, n, agent)-used).Seconds()/watched.Seconds(), "%core")
	}
}

// cpuTime returns the processor time of a daemon (proc_pid_stat(5), utime and stime), to 10 ms.
func cpuTime(t testing.TB, n *lab.Node, name string) time.Duration {
	t.Helper()
	text, err := os.ReadFile(n.Path(fmt.Sprintf("/proc/%d/stat", n.Pid(name))))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), ") ")
	f := strings.Fields(after)
	user, err1 := strconv.Atoi(f[11])
	system, err2 := strconv.Atoi(f[12])
	if err1 != nil || err2 != nil {
		t.Fatalf("%s", text)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
