package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// FRR is the routing daemon FRR of the machine (package frr), in the network of a host or node,
// with files of its own. It ends with the host.
type FRR struct {
	host *Host
	dir  string // its /etc/frr
	cmd  *exec.Cmd
}

// NeedFRR skips the test if FRR is not installed.
func NeedFRR(t TB) {
	t.Helper()
	for _, file := range []string{"bgpd", "frr-reload.py"} {
		if _, err := os.Stat("/usr/lib/frr/" + file); err != nil {
			t.Skipf("needs the packages frr and frr-pythontools: lab/setup.sh tests")
		}
	}
}

// frrScript starts zebra, bgpd and bfdd, which have no ports but those of the protocols, and then
// loads /etc/frr/frr.conf whenever it gets SIGHUP, as the reloader of frr-k8s does.
const frrScript = `
mount --bind "$1" /etc/frr
mkdir -p /run/frr
mount -t tmpfs tmpfs /run/frr
chown frr:frr /run/frr /etc/frr
for d in zebra bgpd bfdd; do /usr/lib/frr/$d -d -P 0; done
printf '%s' $$ >/etc/frr/reloader.pid
reload() { python3 /usr/lib/frr/frr-reload.py --reload --overwrite --stdout /etc/frr/frr.conf >>/etc/frr/reload.log 2>&1; }
[ ! -s /etc/frr/frr.conf ] || reload
trap reload HUP
while :; do sleep infinity & wait $! || :; kill $! 2>/dev/null || :; done`

// StartFRR starts FRR in the network of a host with a configuration, which may be empty.
func StartFRR(ctx context.Context, h *Host, config string) (*FRR, error) {
	f := &FRR{host: h, dir: filepath.Join(h.Dir(), "frr")}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return nil, err
	}
	for name, text := range map[string]string{"frr.conf": config, "vtysh.conf": "service integrated-vtysh-config\n"} {
		if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	f.cmd = h.onMachine(ctx, "unshare", "--mount", "--propagation", "private", "bash", "-ec", frrScript, "frr", f.dir)
	log, err := os.Create(filepath.Join(f.dir, "start.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	f.cmd.Stdout, f.cmd.Stderr = log, log
	if err := f.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start FRR on %s: %w", h.name, err)
	}
	go func() { _ = f.cmd.Wait() }() // it ends with the host
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err = Poll(ctx, 50*time.Millisecond, func() (bool, error) {
		text, err := f.Vtysh(ctx, "show daemons")
		return err == nil && strings.Contains(text, "bgpd") && strings.Contains(text, "bfdd"), nil
	})
	if err != nil {
		return nil, fmt.Errorf("start FRR on %s: %w", h.name, errors.Join(err, logEnd(log.Name())))
	}
	return f, nil
}

// Host is the host that runs FRR.
func (f *FRR) Host() *Host { return f.host }

// enter returns a command line in the network, processes and files of FRR.
func (f *FRR) enter(args ...string) ([]string, error) {
	pid := strconv.Itoa(f.cmd.Process.Pid)
	child, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	if err != nil || len(strings.Fields(string(child))) == 0 {
		return nil, fmt.Errorf("FRR on %s does not run: %w", f.host.name, err)
	}
	return append([]string{"nsenter", "--target", strings.Fields(string(child))[0], "--net", "--pid", "--mount", "--"},
		args...), nil
}

// Vtysh runs a command of FRR's shell and returns what it prints.
func (f *FRR) Vtysh(ctx context.Context, command string) (string, error) {
	args := []string{"vtysh", "-c", command}
	argv, err := f.enter(args...)
	if err != nil {
		return "", err
	}
	return output(f.host.name, enter(ctx, argv), args)
}

// StartFRRK8s starts the program frr-k8s for a node: it configures FRR as the FRRConfigurations of
// a namespace say.
func (f *FRR) StartFRRK8s(ctx context.Context, program, kubeconfig, namespace string) error {
	argv, err := f.enter("env", "FRR_CONFIG_FILE=/etc/frr/frr.conf", "FRR_RELOADER_PID_FILE=/etc/frr/reloader.pid",
		"KUBECONFIG="+kubeconfig, program, "--node-name="+f.host.name, "--namespace="+namespace, "--log-level=debug",
		"--metrics-bind-address=127.0.0.1:0")
	if err != nil {
		return err
	}
	log, err := os.Create(f.Log())
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := enter(ctx, argv)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start frr-k8s on %s: %w", f.host.name, err)
	}
	go func() { _ = cmd.Wait() }() // it ends with the host
	return nil
}

// Log is the file with what frr-k8s logs.
func (f *FRR) Log() string { return filepath.Join(f.dir, "frr-k8s.log") }

// RouterConfig returns the configuration of a router with AS number 64513: it has sessions with
// neighbors of AS 64512, watched by BFD every 100 ms, and takes all prefixes of both families.
func RouterConfig(id netip.Addr, neighbors ...netip.Addr) string {
	var b strings.Builder
	fmt.Fprintf(&b, "router bgp 64513\n bgp router-id %s\n no bgp ebgp-requires-policy\n no bgp default ipv4-unicast\n",
		id)
	for _, a := range neighbors {
		fmt.Fprintf(&b,
			" neighbor %s remote-as 64512\n neighbor %[1]s bfd profile fast\n neighbor %[1]s timers connect 1\n"+
				" address-family ipv4 unicast\n  neighbor %[1]s activate\n exit-address-family\n"+
				" address-family ipv6 unicast\n  neighbor %[1]s activate\n exit-address-family\n", a)
	}
	return b.String() +
		"exit\nbfd\n profile fast\n  detect-multiplier 3\n  receive-interval 100\n  transmit-interval 100\n" +
		" exit\nexit\n"
}

// Routes returns the next hops of the host's BGP routes to a prefix, sorted.
func (f *FRR) Routes(ctx context.Context, prefix string) ([]string, error) {
	family := "-4"
	if strings.Contains(prefix, ":") {
		family = "-6"
	}
	text, err := f.host.Exec(ctx, "ip", family, "route", "show", "proto", "bgp", prefix)
	words := strings.Fields(text)
	var hops []string
	for i, w := range words {
		if w == "via" && i+1 < len(words) {
			hops = append(hops, words[i+1])
		}
	}
	slices.Sort(hops)
	return hops, err
}
