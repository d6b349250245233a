package chaos

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"hairpin/lab"
)

// syncTime is how long nodes may take to be in sync after the last fault.
const syncTime = 30 * time.Second

// releaseTime is how long resources may be in use after the last fault: a node that an address has
// left forwards packets of its open connections for five minutes. What remains is for connections
// that end and caches that expire.
const releaseTime = 5*time.Minute + 90*time.Second

const notInSync = "not everything is in sync 30 s after the last fault"

// hairpin runs a command of the program for the whole cluster, with the administrator's kubeconfig.
func (r *run) hairpin(ctx context.Context, args ...string) (string, error) {
	out, err := r.runHairpin(ctx, (*exec.Cmd).CombinedOutput, args)
	return string(out), err
}

// runHairpin is hairpin with a choice of the output.
func (r *run) runHairpin(ctx context.Context, output func(*exec.Cmd) ([]byte, error), args []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return output(exec.CommandContext(ctx, filepath.Join(r.opt.Root, "bin", "hairpin"),
		append(args, "--kubeconfig", r.cluster.Kubeconfig())...))
}

// waitInSync waits until every node is in sync, `hairpin diff` is empty and every pod is ready.
func (r *run) waitInSync(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	problem := "nothing answered"
	err := lab.Poll(ctx, time.Second, func() (bool, error) {
		out, err := r.hairpin(ctx, "status", "--brief")
		if err != nil && ctx.Err() == nil {
			problem = "hairpin status: " + out
		}
		if err != nil {
			return false, nil
		}
		for _, n := range r.cluster.Lab().Nodes() {
			out, err := execInDaemon(ctx, n, "^hairpin node", "hairpin", "diff")
			if err != nil && ctx.Err() == nil {
				problem = fmt.Sprintf("hairpin diff on %s: %v\n%s", n.Name(), err, out)
			}
			if err != nil {
				return false, nil
			}
		}
		return true, nil
	})
	if err == nil {
		err = r.waitReady(ctx)
	}
	if err != nil {
		return fmt.Errorf("not in sync after %s: %w; last: %s", limit, err, problem)
	}
	return nil
}

// checkEnd checks the invariants after the last fault: every node is in sync, and nothing has
// leaked.
func (r *run) checkEnd(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	begin := r.since()
	if err := r.waitInSync(ctx, syncTime); err != nil {
		r.addViolation(Violation{What: notInSync, From: begin, To: r.since(), Count: 1, First: err.Error()})
		if r.opt.giveUpEarly {
			return
		}
		if err := r.waitInSync(ctx, 5*time.Minute); err != nil {
			r.addViolation(Violation{What: "a node does not recover", From: begin, To: r.since(), Count: 1,
				First: err.Error()})
			return
		}
	}
	r.progress("everything is in sync %.1f s after the last fault", (r.since() - begin).Seconds())
	var leaked []string
	err := lab.Poll(ctx, 5*time.Second, func() (bool, error) {
		late := r.since()-begin > releaseTime
		after, err := r.resources(ctx)
		if err != nil && !late {
			return false, nil // a daemon may be busy
		}
		leaked = leaks(r.before, after)
		r.after = after
		return len(leaked) == 0 || late, err
	})
	if err != nil {
		leaked = append(leaked, err.Error())
	}
	if len(leaked) > 0 {
		r.addViolation(Violation{What: "resources are not what they were", From: begin, To: r.since(), Count: len(leaked),
			First: strings.Join(leaked, "; ")})
	}
}

// counts are commands that print how many of a resource a node has. They run in the container of a
// daemon, or on the node.
var counts = []struct{ what, daemon, command string }{
	{"flows of br-int", "^ovs-vswitchd", "ovs-ofctl dump-flows br-int | grep -c cookie="},
	{"flows of br-ex", "^ovs-vswitchd", "ovs-ofctl dump-flows br-ex | grep -c cookie="},
	{"ports", "^ovs-vswitchd", "ovs-vsctl --no-wait --bare --columns=name find Interface | grep -c ."},
	{"OVN ports", "^ovn-controller", "ovn-nbctl --bare --columns=name find Logical_Switch_Port | grep -c ."},
	{"rows of OVN's northbound database", "^ovn-controller", rows("nb", "OVN_Northbound")},
	{"rows of OVN's southbound database", "^ovn-controller", rows("sb", "OVN_Southbound")},
	{"connections in the datapath", "^ovs-vswitchd",
		"ovs-appctl --target=$(ls -t /var/run/openvswitch/ovs-vswitchd.*.ctl | head -1) dpctl/ct-get-nconns"},
	{"connections in the kernel", "", "cat /proc/sys/net/netfilter/nf_conntrack_count"},
	{"links", "", "ip -o link | wc -l"},
	{"routes", "", "{ ip -4 route show table all proto 85; ip -6 route show table all proto 85; } | wc -l"},
	{"rules", "", "{ ip rule; ip -6 rule; } | wc -l"},
	{"network namespaces", "", "ls /run/netns | wc -l"},
	{"rules of nft", "", "nft list ruleset | wc -l"},
	{"goroutines of the agent", "^hairpin node", "hairpin probe metrics | sed -n 's/^go_goroutines //p'"},
	{"files of the agent", "^hairpin node", "hairpin probe metrics | sed -n 's/^process_open_fds //p'"},
	{"files of ovs-vswitchd", "", "ls /proc/$(pgrep -o -f ^ovs-vswitchd)/fd | wc -l"},
	{"MB of memory of the agent", "", resident("^hairpin node")},
	{"MB of memory of ovs-vswitchd", "", resident("^ovs-vswitchd")},
	{"MB of memory of ovn-controller", "", resident("^ovn-controller")},
}

// rows returns a command that prints how many lines the rows of an OVN database take.
func rows(socket, database string) string {
	return fmt.Sprintf("ovsdb-client dump unix:/var/run/ovn/ovn%s_db.sock %s | grep -c .", socket, database)
}

// resident returns a command that prints the resident memory of a process.
func resident(process string) string {
	return fmt.Sprintf("awk '/^VmRSS:/ {print int($2/1024)}' /proc/$(pgrep -o -f '%s')/status", process)
}

// resources counts the resources of each node that could leak.
func (r *run) resources(ctx context.Context) (map[string]int, error) {
	all := map[string]int{}
	for _, n := range r.cluster.Lab().Nodes() {
		for _, c := range counts {
			var out string
			var err error
			if c.daemon == "" {
				out, err = n.Exec(ctx, "sh", "-c", c.command)
			} else {
				out, err = execInDaemon(ctx, n, c.daemon, "sh", "-c", c.command)
			}
			if err != nil {
				return nil, fmt.Errorf("count %s: %w", c.what, err)
			}
			number, err := strconv.Atoi(strings.TrimSpace(out))
			if err != nil {
				return nil, fmt.Errorf("count %s of %s: %w", c.what, n.Name(), err)
			}
			all[n.Name()+": "+c.what] = number
		}
	}
	return all, nil
}

// brokenConnections is how many connections a node may still track because faults broke them: they
// expire after hours. A run has a hundred thousand that end as they should.
const brokenConnections = 500

// leaks returns the resources of which there are more than before. Memory may grow by a half, and
// what depends on the traffic, or on which node has which address, by a tenth.
func leaks(before, after map[string]int) (list []string) {
	for _, what := range slices.Sorted(maps.Keys(before)) {
		most := before[what]
		switch {
		case strings.Contains(what, "memory"):
			most += most / 2
		case strings.Contains(what, "connections"):
			most += brokenConnections
		case strings.Contains(what, "goroutines"), strings.Contains(what, "files"), strings.Contains(what, "flows"),
			strings.Contains(what, "rows of OVN"):
			most += max(most/10, 5)
		}
		if after[what] > most {
			list = append(list, fmt.Sprintf("%s: %d, now %d", what, before[what], after[what]))
		}
	}
	return list
}
