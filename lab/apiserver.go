package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// APIServerConfig describes the Kubernetes control plane to start.
type APIServerConfig struct {
	Binary string // of BuildKube
	// Dir holds its whole state: etcd's data, certificates, tokens, "kubeconfig" (the
	// administrator's), "log", and per entry of Nodes a "node-NAME.kubeconfig". A second start with
	// the same Dir continues with the same objects.
	Dir string
	// Address is the address of the API server (port 6443). It must be on an interface of Netns,
	// and not a loopback address.
	Address netip.Addr
	// Netns is the path of the network namespace to run in. Empty means that of the caller.
	Netns string
	// ServiceCIDRs are the ranges of cluster IPs: one, or one of each family, the primary family
	// first. Empty means 10.96.0.0/16 and fd00:10:96::/112.
	ServiceCIDRs []netip.Prefix
	// ClusterCIDRs are cut into the spec.podCIDRs of Nodes, a /24 and a /64 each: one, or one of
	// each family, the primary family first. Empty means 10.244.0.0/16 and fd00:10:244::/48.
	ClusterCIDRs []netip.Prefix
	// Nodes are the nodes that get the identity of a kubelet (system:node:NAME in system:nodes).
	Nodes []string
	// Kubelets means that Nodes have real kubelets: a Node whose kubelet does not report for 40 s
	// becomes not ready. Without it, a Node keeps its status.
	Kubelets bool
	// DieWithCaller ends it when the calling process is gone, however that happened. Without it the
	// server stays, and OpenAPIServer finds it again.
	DieWithCaller bool
}

// APIServer is a running control plane: etcd, API server, controller manager and scheduler in one
// process.
type APIServer struct {
	dir    string
	record apiServerRecord
	exited <-chan struct{} // closed when the child has been reaped; nil if another process started it
	stdin  io.Closer       // held open for DieWithCaller, else nil
}

// apiServerRecord is the state that OpenAPIServer needs; it is stored in Dir.
type apiServerRecord struct {
	PID   int    // process
	Start string // its start time, which distinguishes it from a later process with the same PID
	Netns string
}

// apiServerStartTimeout is generous: a start takes 3 s on two idle cores, and minutes in qemu.
const apiServerStartTimeout = 10 * time.Minute

// StartAPIServer starts a control plane and returns when it is ready: the API answers and Pods can
// be created in the default namespace. It sets lo of Netns up. When it fails, nothing is left
// running, and the error has the end of the log. ctx bounds the start only.
func StartAPIServer(ctx context.Context, cfg APIServerConfig) (*APIServer, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("starting the API server: %w", err)
	}
	cfg.Dir = dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("starting the API server: %w", err)
	}
	if cfg.Netns != "" {
		if err := raiseLoopback(cfg.Netns); err != nil {
			return nil, fmt.Errorf("starting the API server: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, apiServerStartTimeout)
	defer cancel()
	s, ready, err := launchAPIServer(cfg)
	if err != nil {
		return nil, fmt.Errorf("starting the API server: %w", err)
	}
	select {
	case <-ready:
		return s, nil
	case <-s.exited:
		err = errors.New("it exited")
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, fmt.Errorf("waiting until the API server is ready: %w", errors.Join(err, s.Stop(), logEnd(s.LogFile())))
}

// launchAPIServer starts the process; ready is closed when it reports that it is ready.
func launchAPIServer(cfg APIServerConfig) (s *APIServer, ready <-chan struct{}, err error) {
	cmd := exec.Command(cfg.Binary, apiServerArgs(cfg)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C in the lab's terminal reaches only the lab
	s = &APIServer{dir: cfg.Dir}
	log, err := os.OpenFile(s.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = log.Close() }() // the child has its own
	cmd.Stderr = log
	if cfg.DieWithCaller {
		if s.stdin, err = cmd.StdinPipe(); err != nil {
			return nil, nil, err
		}
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := withNetns(cfg.Netns, cmd.Start); err != nil { // a child starts in the namespace of its parent's thread
		if cmd.Process != nil { // it started, and only the return from the namespace failed
			err = errors.Join(err, cmd.Process.Kill(), cmd.Wait())
		}
		return nil, nil, err
	}
	said, exited := make(chan struct{}), make(chan struct{})
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if lines.Text() == "ready" {
				close(said)
				break
			}
		}
		_ = cmd.Wait() // how it ended is in the log
		close(exited)
	}()
	s.exited = exited
	s.record = apiServerRecord{PID: cmd.Process.Pid, Start: startTime(cmd.Process.Pid), Netns: cfg.Netns}
	data, err := json.Marshal(s.record)
	if err == nil {
		err = os.WriteFile(recordFile(cfg.Dir), data, 0o600)
	}
	if err != nil {
		return nil, nil, errors.Join(err, s.Stop())
	}
	return s, said, nil
}

func apiServerArgs(cfg APIServerConfig) []string {
	args := []string{"--dir", cfg.Dir, "--address", cfg.Address.String()}
	add := func(flag string, words []string) {
		if len(words) > 0 {
			args = append(args, flag, strings.Join(words, ","))
		}
	}
	add("--service-cidrs", prefixWords(cfg.ServiceCIDRs))
	add("--cluster-cidrs", prefixWords(cfg.ClusterCIDRs))
	add("--nodes", cfg.Nodes)
	if cfg.Kubelets {
		args = append(args, "--kubelets")
	}
	if cfg.DieWithCaller {
		args = append(args, "--until-stdin-closes")
	}
	return args
}

func prefixWords(prefixes []netip.Prefix) []string {
	var words []string
	for _, p := range prefixes {
		words = append(words, p.String())
	}
	return words
}

// OpenAPIServer returns the control plane that another process started with this Dir. It is an
// error when it does not run.
func OpenAPIServer(dir string) (*APIServer, error) {
	data, err := os.ReadFile(recordFile(dir))
	if err != nil {
		return nil, fmt.Errorf("finding the API server of %s: %w", dir, err)
	}
	s := &APIServer{dir: dir}
	if err := json.Unmarshal(data, &s.record); err != nil {
		return nil, fmt.Errorf("reading %s: %w", recordFile(dir), err)
	}
	if !s.running() {
		return nil, fmt.Errorf("finding the API server of %s: process %d is gone", dir, s.record.PID)
	}
	return s, nil
}

// Stop ends the control plane and waits for it, a few seconds at most. Stopping a stopped one is no
// error.
func (s *APIServer) Stop() error {
	if s.stdin != nil {
		_ = s.stdin.Close() // closed twice on a second Stop
	}
	process, err := os.FindProcess(s.record.PID) // holds a pidfd: signals go to this process or none
	if err != nil {
		return fmt.Errorf("stopping the API server: %w", err)
	}
	defer func() { _ = process.Release() }()
	for _, attempt := range []struct {
		signal syscall.Signal
		grace  time.Duration
	}{{syscall.SIGTERM, 5 * time.Second}, {syscall.SIGKILL, 5 * time.Second}} {
		if !s.running() {
			return nil
		}
		if err := process.Signal(attempt.signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stopping the API server with %s: %w", attempt.signal, err)
		}
		for end := time.Now().Add(attempt.grace); time.Now().Before(end) && s.running(); {
			time.Sleep(10 * time.Millisecond) // wait(2) works only for children
		}
	}
	if s.running() {
		return fmt.Errorf("stopping the API server: process %d survives SIGKILL", s.record.PID)
	}
	return nil
}

// running reports whether the process is alive. A child of this one counts until it is reaped.
func (s *APIServer) running() bool {
	if s.exited != nil {
		select {
		case <-s.exited:
			return false
		default:
			return true
		}
	}
	return s.record.Start != "" && startTime(s.record.PID) == s.record.Start
}

// RESTConfig returns the administrator's client configuration. Its connections are made from inside
// the server's network namespace, so it works wherever the caller is. It has no client-side rate
// limit.
func (s *APIServer) RESTConfig() (*rest.Config, error) {
	c, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("reading the API server's kubeconfig: %w", err)
	}
	c.QPS = -1
	if s.record.Netns != "" {
		c.Dial = dialer(s.record.Netns)
	}
	return c, nil
}

// Kubeconfig is the path of the administrator's kubeconfig. It works only where the server's
// address is reachable.
func (s *APIServer) Kubeconfig() string { return filepath.Join(s.dir, "kubeconfig") }

// LogFile is the path of the log of all four components.
func (s *APIServer) LogFile() string { return filepath.Join(s.dir, "log") }

// DataDir has the data of etcd.
func (s *APIServer) DataDir() string { return filepath.Join(s.dir, "etcd") }

// PID returns the process ID of the server.
func (s *APIServer) PID() int { return s.record.PID }

func recordFile(dir string) string { return filepath.Join(dir, "process.json") }

// startTime returns when a process started, in clock ticks since boot (proc(5), field 22 of stat);
// empty when there is none or when it is a zombie.
func startTime(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The second field, a name in brackets, may hold spaces and brackets.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return ""
	}
	return fields[19]
}

// logEnd returns the last lines of a log as an error, for an error message; nil when there are
// none.
func logEnd(path string) error {
	const keep = 2000
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if len(data) == 0 {
		return nil
	}
	return fmt.Errorf("end of %s:\n%s", path, data[max(0, len(data)-keep):])
}
