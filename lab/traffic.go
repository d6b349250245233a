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
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/lab/probe"
)

// probeName is the first argument that makes a program with this package in it the probe.
const probeName = "hairpin-lab-probe"

func init() {
	if len(os.Args) > 1 && os.Args[1] == probeName {
		os.Exit(probe.Main(os.Args[2:]))
	}
}

// Place is where traffic starts or ends: a Host, the host network of a Node, a Pod.
type Place interface {
	Name() string
	Netns() string // path of its network namespace
	// onMachine prepares a command in the place's network and processes, on the machine's file
	// system.
	onMachine(ctx context.Context, args ...string) *exec.Cmd
}

func (h *Host) onMachine(ctx context.Context, args ...string) *exec.Cmd {
	return h.Command(ctx, args...)
}

// Get sends a request to a server from a place.
func Get(ctx context.Context, from Place, r probe.Request) probe.Answer {
	var a probe.Answer
	if err := withNetns(from.Netns(), func() error { a = probe.Get(ctx, r); return nil }); err != nil {
		a.Error = err.Error()
	}
	return a
}

// Until opens a TCP connection from a place every millisecond until a server of that name replies.
// It returns the time of the reply. Each attempt may take the time try.
func Until(ctx context.Context, from Place, to netip.AddrPort, name string, try,
	timeout time.Duration) (at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last probe.Answer
	err = withNetns(from.Netns(), func() error {
		for {
			next := time.Now().Add(time.Millisecond)
			last = probe.Get(ctx, probe.Request{Protocol: "tcp", To: to, Timeout: try})
			if last.Error == "" && last.Name == name {
				at = time.Now()
				return nil
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			time.Sleep(time.Until(next))
		}
	})
	if err != nil {
		return at, fmt.Errorf("wait until %s is answered by %s: %w; last: %s %s", to, name, err, last.Name, last.Error)
	}
	return at, nil
}

// Do calls fn in the network of a place, as Host.Do does.
func Do(at Place, fn func() error) error { return withNetns(at.Netns(), fn) }

// Serve starts a probe server in a place, on TCP and UDP and all addresses, and returns when it
// listens. It stays until stop is called or the place is gone.
func Serve(ctx context.Context, at Place, name string, port uint16) (stop func() error, err error) {
	return serve(ctx, at, name, port)
}

// Sink is Serve for a server that reads what TCP connections send, and sends nothing.
func Sink(ctx context.Context, at Place, port uint16) (stop func() error, err error) {
	return serve(ctx, at, "sink", port, "--sink")
}

func serve(ctx context.Context, at Place, name string, port uint16, flags ...string) (stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	args := append([]string{self, probeName, "serve", "--name", name, "--port", fmt.Sprint(port)}, flags...)
	cmd := at.onMachine(context.WithoutCancel(ctx), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives the terminal of the lab
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	// A file, not a pipe: a pipe has no reader after this process has ended.
	said, err := os.CreateTemp("", "hairpin-lab-serve-")
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	defer said.Close()
	defer os.Remove(said.Name())
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		waited := cmd.Wait()
		return nil, fmt.Errorf("serve %s port %d in %s: %w", name, port, at.Name(),
			errors.Join(err, waited, logEnd(said.Name())))
	}
	if line != "ready\n" {
		return nil, fmt.Errorf("serve %s in %s: it said %q", name, at.Name(), line)
	}
	group := process{cmd.Process.Pid, startTime(cmd.Process.Pid)}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }() // its exit status does not matter
	return func() error {
		if !group.alive() {
			return nil
		}
		if err := unix.Kill(-group.PID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("stop server %s: %w", name, err)
		}
		<-ended
		return nil
	}, nil
}

// Load generates load from a place and returns what it achieved.
func Load(ctx context.Context, from Place, cfg probe.LoadConfig) (report probe.LoadReport, err error) {
	self, err := os.Executable()
	if err != nil {
		return report, fmt.Errorf("load: %w", err)
	}
	args := []string{self, probeName, "load", "--to", cfg.To.String(), "--workers", fmt.Sprint(cfg.Workers), "--for",
		cfg.Duration.String()}
	out, err := output(from.Name(), from.onMachine(ctx, args...), args[1:])
	if err != nil {
		return report, fmt.Errorf("load from %s: %w", from.Name(), err)
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return report, fmt.Errorf("report of load: %w", err)
	}
	return report, nil
}

// Stream is a stream of connections that runs in parallel with the rest of a test.
type Stream struct {
	cmd     *exec.Cmd
	stdout  io.Reader
	stderr  *strings.Builder
	answers atomic.Int64 // so far
}

// StartStream starts a stream from a place and returns when its long connections are open.
func StartStream(ctx context.Context, from Place, cfg probe.StreamConfig) (*Stream, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("stream: %w", err)
	}
	cmd := from.onMachine(ctx, self, probeName, "stream", "--proto", cfg.Protocol, "--to", cfg.To.String(),
		"--rate", fmt.Sprint(cfg.Rate), "--long", fmt.Sprint(cfg.Long), "--every", cfg.Every.String(),
		"--timeout", cfg.Timeout.String(), "--for", cfg.Duration.String(), fmt.Sprintf("--speak=%t", cfg.Speak))
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("stream: %w", err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("stream: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("stream: %w", err)
	}
	s := &Stream{cmd: cmd, stdout: stdout, stderr: &strings.Builder{}}
	lines := bufio.NewReader(stderr)
	for {
		line, err := lines.ReadString('\n')
		if line == "0\n" {
			go s.count(lines)
			return s, nil
		}
		s.stderr.WriteString(line)
		if err != nil {
			waited := cmd.Wait()
			return nil, fmt.Errorf("stream from %s to %s: %w: %s", from.Name(), cfg.To, waited, s.stderr)
		}
	}
}

// count reads what a running stream reports: the number of its answers.
func (s *Stream) count(lines *bufio.Reader) {
	for {
		line, err := lines.ReadString('\n')
		if n, bad := strconv.ParseInt(strings.TrimSpace(line), 10, 64); bad == nil {
			s.answers.Store(n)
		}
		if err != nil {
			return
		}
	}
}

// Flow waits until each of the streams has received n more answers: greetings on new connections,
// and echoes on the others.
func Flow(ctx context.Context, n int64, streams ...*Stream) error {
	enough := make([]int64, len(streams))
	for i, s := range streams {
		enough[i] = s.answers.Load() + n
	}
	for i, s := range streams {
		for s.answers.Load() < enough[i] {
			select {
			case <-ctx.Done():
				return fmt.Errorf("stream %d of %d has %d answers, not %d: %w", i, len(streams), s.answers.Load(),
					enough[i], ctx.Err())
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	return nil
}

// End ends the stream early and returns its report.
func (s *Stream) End() (probe.Report, error) {
	// Signal the whole process group: nsenter does not forward signals.
	if err := unix.Kill(-s.cmd.Process.Pid, unix.SIGINT); err != nil && !errors.Is(err, unix.ESRCH) {
		return probe.Report{}, fmt.Errorf("end stream: %w", err)
	}
	return s.Wait()
}

// Wait returns the report at the end of the stream's duration.
func (s *Stream) Wait() (probe.Report, error) {
	var r probe.Report
	if err := json.NewDecoder(s.stdout).Decode(&r); err != nil {
		return r, fmt.Errorf("report of stream: %w: %s", errors.Join(err, s.cmd.Wait()), s.stderr)
	}
	_ = s.cmd.Wait() // nsenter may have been interrupted; the report is complete
	return r, nil
}
