package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/lab"
	"hairpin/lab/attack"
	"hairpin/lab/cluster"
)

// recoveryTimeout is how long a daemon may take to run again. A kubelet restarts a container that
// keeps ending after growing pauses.
const recoveryTimeout = 6 * time.Minute

// node returns a node, or an error while it reboots.
func (r *run) node(name string) (*lab.Node, error) {
	if n := r.cluster.Lab().Node(name); n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("%s does not run", name)
}

// pids returns the processes of a node with a command line that matches a regular expression.
func pids(ctx context.Context, n *lab.Node, pattern string) ([]string, error) {
	out, err := n.Exec(ctx, "pgrep", "-f", pattern)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 1 {
		return nil, nil // none
	}
	return strings.Fields(out), err
}

// signal sends a signal to processes of a node that match a pattern, and returns their IDs.
func signal(ctx context.Context, n *lab.Node, pattern, sig string) ([]string, error) {
	list, err := pids(ctx, n, pattern)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%s: no process matches %q", n.Name(), pattern)
	}
	if err == nil {
		_, err = n.Exec(ctx, append([]string{"kill", "-" + sig}, list...)...)
	}
	return list, err
}

// execInDaemon runs a command in the container of a daemon.
func execInDaemon(ctx context.Context, n *lab.Node, pattern string, command ...string) (string, error) {
	list, err := pids(ctx, n, pattern)
	if err != nil || len(list) == 0 {
		return "", fmt.Errorf("%s: no process matches %q: %w", n.Name(), pattern, err)
	}
	return n.Exec(ctx, append([]string{"nsenter", "--target", list[0], "--mount", "--"}, command...)...)
}

// waitForProcess returns an undo that waits until a process matches a pattern.
func (r *run) waitForProcess(node, pattern string) undo {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
		defer cancel()
		return lab.Poll(ctx, 100*time.Millisecond, func() (bool, error) {
			n, err := r.node(node)
			if err != nil {
				return false, err
			}
			list, err := pids(ctx, n, pattern)
			return len(list) > 0, err
		})
	}
}

func killDaemon(pattern string) func(context.Context, *run, Fault) (undo, error) {
	return func(ctx context.Context, r *run, f Fault) (undo, error) {
		n, err := r.node(f.Node)
		if err != nil {
			return nil, err
		}
		if _, err := signal(ctx, n, pattern, "KILL"); err != nil {
			return nil, err // not every node has a controller
		}
		return r.waitForProcess(f.Node, pattern), nil
	}
}

func stopDaemon(pattern string) func(context.Context, *run, Fault) (undo, error) {
	return func(ctx context.Context, r *run, f Fault) (undo, error) {
		n, err := r.node(f.Node)
		if err != nil {
			return nil, err
		}
		list, err := signal(ctx, n, pattern, "STOP")
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			for _, pid := range list { // the process may have been replaced
				_, _ = n.Exec(ctx, "kill", "-CONT", pid)
			}
			return r.waitForProcess(f.Node, pattern)(ctx)
		}, nil
	}
}

// killAndStart kills a daemon that the lab started, and starts it again.
func killAndStart(name string) func(context.Context, *run, Fault) (undo, error) {
	return func(ctx context.Context, r *run, f Fault) (undo, error) {
		n, err := r.node(f.Node)
		if err != nil {
			return nil, err
		}
		start := func(ctx context.Context) error { return n.Start(ctx, name) }
		return start, n.Kill(ctx, name, unix.SIGKILL)
	}
}

// runCommand returns an injection that runs a command on a node, or in the container of a daemon.
func runCommand(pattern string, command []string) func(context.Context, *run, Fault) (undo, error) {
	return func(ctx context.Context, r *run, f Fault) (undo, error) {
		n, err := r.node(f.Node)
		switch {
		case err != nil:
		case pattern == "":
			_, err = n.Exec(ctx, command...)
		default:
			_, err = execInDaemon(ctx, n, pattern, command...)
		}
		return noUndo, err
	}
}

// noUndo is the undo of a fault that Hairpin repairs.
func noUndo(context.Context) error { return nil }

func killControlPlane(_ context.Context, r *run, _ Fault) (undo, error) {
	return r.cluster.StartServer, syscall.Kill(r.cluster.Server().PID(), unix.SIGKILL)
}

func stopControlPlane(_ context.Context, r *run, _ Fault) (undo, error) {
	pid := r.cluster.Server().PID()
	return func(context.Context) error { return syscall.Kill(pid, unix.SIGCONT) }, syscall.Kill(pid, unix.SIGSTOP)
}

func slowControlPlane(ctx context.Context, r *run, f Fault) (undo, error) {
	pid := r.cluster.Server().PID()
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	random := rand.New(rand.NewPCG(uint64(f.Start), uint64(f.End)))
	go func() {
		var err error
		for err == nil && ctx.Err() == nil {
			err = syscall.Kill(pid, unix.SIGSTOP)
			sleep(ctx, jitter(random, second, 5*second))
			err = errors.Join(err, syscall.Kill(pid, unix.SIGCONT))
			sleep(ctx, 300*time.Millisecond)
		}
		ended <- err
	}()
	return func(context.Context) error { stop(); return <-ended }, nil
}

// restartAgents replaces the agents of all nodes by new pods.
func restartAgents(ctx context.Context, r *run, _ Fault) (undo, error) {
	return func(ctx context.Context) error { return rolledOut(ctx, r.cluster, agents) },
		rollout(ctx, r.cluster, "restart", agents)
}

// agents is the DaemonSet of the agents.
const agents = "daemonset/hairpin-node"

// rolledOut waits until only new pods of a DaemonSet run.
func rolledOut(ctx context.Context, c *cluster.Cluster, daemonSet string) error {
	return rollout(ctx, c, "status", daemonSet, "--timeout="+recoveryTimeout.String())
}

func rollout(ctx context.Context, c *cluster.Cluster, what, daemonSet string, flags ...string) error {
	_, err := c.Kubectl(ctx, "", append([]string{"--namespace", "hairpin", "rollout", what, daemonSet}, flags...)...)
	return err
}

// deleteOpenvSwitch deletes the pod of a node's Open vSwitch.
func deleteOpenvSwitch(ctx context.Context, r *run, f Fault) (undo, error) {
	kubectl := func(ctx context.Context, args ...string) (string, error) {
		return r.cluster.Kubectl(ctx, "", append([]string{"--namespace", "hairpin"}, args...)...)
	}
	pod, err := kubectl(ctx, "get", "pods", "--selector", "app.kubernetes.io/component=openvswitch",
		"--field-selector", "spec.nodeName="+f.Node, "--output", "jsonpath={.items[0].metadata.name}")
	if err == nil {
		_, err = kubectl(ctx, "delete", "pod", pod, "--wait=false")
	}
	return func(ctx context.Context) error {
		_, err := kubectl(ctx, "wait", "--for=delete", "pod/"+pod, "--timeout="+recoveryTimeout.String())
		if err == nil {
			err = rolledOut(ctx, r.cluster, "daemonset/hairpin-ovs")
		}
		return err
	}, err
}

// nextImage is the archive of the image to upgrade to, below the root of the sources.
const nextImage = "dist/hairpin-next-image.tar"

// upgradeAndBack installs another build of Hairpin, and then the first one again.
func upgradeAndBack(ctx context.Context, r *run, _ Fault) (undo, error) {
	install := func(ctx context.Context, values ...string) error {
		err := retry(ctx, second, func(ctx context.Context) error { // the API server may not answer
			return r.cluster.InstallHairpin(ctx, values...)
		})
		if err != nil {
			return err
		}
		return rolledOut(ctx, r.cluster, agents)
	}
	return func(ctx context.Context) error { return install(ctx) }, install(ctx, "image.tag=next")
}

// retry calls try until it succeeds, for at most recoveryTimeout.
func retry(ctx context.Context, every time.Duration, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	var failed error
	err := lab.Poll(ctx, every, func() (bool, error) {
		failed = try(ctx)
		return failed == nil, nil
	})
	return errors.Join(err, failed)
}

func replaceTokenKey(ctx context.Context, r *run, _ Fault) (undo, error) {
	return noUndo, r.cluster.RotateTokenKey(ctx)
}

// reloadCA is the time after which every client in a pod has read its CA again: client-go does it
// every five minutes.
const reloadCA = 330 * second

func replaceCA(ctx context.Context, r *run, _ Fault) (undo, error) { return r.cluster.AddCA(ctx) }

// sleep waits for a time, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// pauseNode stops every process of a node except PID 1, which does nothing.
func pauseNode(ctx context.Context, r *run, f Fault) (undo, error) {
	n, err := r.node(f.Node)
	if err != nil {
		return nil, err
	}
	all := func(sig string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := n.Exec(ctx, "sh", "-c", "kill -"+sig+" -1")
			return err
		}
	}
	return func(ctx context.Context) error { // after 40 s, Kubernetes considers pods of a silent node not ready
		if err := all("CONT")(ctx); err != nil {
			return err
		}
		return r.waitNode(ctx, f.Node)
	}, all("STOP")(ctx)
}

func rebootNode(ctx context.Context, r *run, f Fault) (undo, error) {
	begin := time.Now().Truncate(time.Second)
	return func(ctx context.Context) error { return r.waitRestarted(ctx, f.Node, begin) }, r.cluster.Reboot(ctx, f.Node)
}

// addTable adds a table of nft to the underlay, through which all frames between machines pass. The
// undo removes it.
func (r *run) addTable(ctx context.Context, family, chains string) (undo, error) {
	underlay := r.cluster.Lab().Underlay()
	table := family + " chaos" + strconv.FormatInt(r.tables.Add(1), 10)
	command := underlay.Command(ctx, "nft", "-f", "-")
	command.Stdin = strings.NewReader("table " + table + " {\n" + chains + "}\n")
	if out, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("nft: table %s: %w: %s", table, err, out)
	}
	return func(ctx context.Context) error {
		_, err := underlay.Exec(ctx, "nft", "delete table "+table)
		return err
	}, nil
}

// forwardChain returns a chain with rules for frames that a bridge forwards.
func forwardChain(rules ...string) string {
	return "chain forward {\ntype filter hook forward priority 0\n" + strings.Join(rules, "\n") + "\n}\n"
}

// underlayPorts returns the underlay's ports of nodes.
func (r *run) underlayPorts(names ...string) ([]string, error) {
	var list []string
	for _, name := range names {
		n, err := r.node(name)
		if err != nil {
			return nil, err
		}
		list = append(list, n.UnderlayPort())
	}
	return list, nil
}

// dropBetween drops what passes between two nodes, both ways or one.
func dropBetween(both bool) func(context.Context, *run, Fault) (undo, error) {
	return func(ctx context.Context, r *run, f Fault) (undo, error) {
		p, err := r.underlayPorts(f.Node, f.Peer)
		if err != nil {
			return nil, err
		}
		rules := []string{fmt.Sprintf("iifname %s oifname %s drop", p[0], p[1])}
		if both {
			rules = append(rules, fmt.Sprintf("iifname %s oifname %s drop", p[1], p[0]))
		}
		return r.addTable(ctx, "bridge", forwardChain(rules...))
	}
}

func dropAPI(ctx context.Context, r *run, f Fault) (undo, error) {
	p, err := r.underlayPorts(f.Node)
	if err != nil {
		return nil, err
	}
	return r.addTable(ctx, "bridge", forwardChain(fmt.Sprintf("iifname %s tcp dport %d drop", p[0], cluster.APIPort),
		fmt.Sprintf("oifname %s tcp sport %d drop", p[0], cluster.APIPort)))
}

func dropSome(ctx context.Context, r *run, f Fault) (undo, error) {
	p, err := r.underlayPorts(f.Node)
	if err != nil {
		return nil, err
	}
	return r.addTable(ctx, "bridge", forwardChain("iifname "+p[0]+" numgen random mod 5 == 0 drop",
		"oifname "+p[0]+" numgen random mod 5 == 0 drop"))
}

func duplicateFrames(ctx context.Context, r *run, f Fault) (undo, error) {
	p, err := r.underlayPorts(f.Node)
	if err != nil {
		return nil, err
	}
	rules := "chain ingress {\ntype filter hook ingress device " + p[0] + " priority 0\n"
	for _, h := range r.cluster.Lab().Hosts() {
		if h.Name() == f.Node || h.Name() == r.cluster.Lab().Underlay().Name() {
			continue
		}
		mac, err := attack.MAC(h, "eth0")
		if err != nil {
			return nil, err
		}
		rules += fmt.Sprintf("ether daddr %s numgen random mod 3 == 0 dup to %s\n", mac, h.UnderlayPort())
	}
	return r.addTable(ctx, "netdev", rules+"}\n")
}

// lowerMTU sets a smaller MTU of a node's uplink.
func lowerMTU(ctx context.Context, r *run, f Fault) (undo, error) {
	n, err := r.node(f.Node)
	if err != nil {
		return nil, err
	}
	return linkSet(n, "eth0", "mtu", "1500"), linkSet(n, "eth0", "mtu", "1400")(ctx)
}

// addAddresses adds an address to the gateway bridge of a node, as DHCP or a router advertisement
// does.
func addAddresses(ctx context.Context, r *run, f Fault) (undo, error) {
	n, err := r.node(f.Node)
	if err != nil {
		return nil, err
	}
	change := func(what string) func(context.Context) error {
		return func(ctx context.Context) error {
			var errs []error
			for _, p := range withGreaterByte(n.Addresses(), 100) {
				_, err := n.Exec(ctx, "ip", "address", what, p.String(), "dev", lab.GatewayBridge)
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		}
	}
	return change("del"), change("add")(ctx)
}

// linkSet returns a function that runs `ip link set` on a host.
func linkSet(at interface {
	Exec(ctx context.Context, args ...string) (string, error)
}, link string, words ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := at.Exec(ctx, append([]string{"ip", "link", "set", link}, words...)...)
		return err
	}
}

func setUplinkDown(ctx context.Context, r *run, f Fault) (undo, error) {
	p, err := r.underlayPorts(f.Node)
	if err != nil {
		return nil, err
	}
	at := r.cluster.Lab().Underlay()
	return linkSet(at, p[0], "up"), linkSet(at, p[0], "down")(ctx)
}
