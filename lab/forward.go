package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// forwarderName is the argv[0] that makes a program with this package in it a forwarder; see
// Forward.
const forwarderName = "hairpin-lab-forwarder"

// forwarderConfig is the configuration of a forwarder, as JSON in its second argument.
type forwarderConfig struct {
	Lifeline bool // exit at end of standard input
	Listen   []netip.AddrPort
	Netns    string
	To       netip.AddrPort
}

func init() {
	if os.Args[0] == forwarderName {
		os.Exit(forwarderMain())
	}
}

// Forward starts a process that listens on the machine, on the first free address of listen. It
// forwards every TCP connection to the address to, from the network of a host of the lab. It ends
// with the lab.
func (l *Lab) Forward(from *Host, to netip.AddrPort, listen ...netip.AddrPort) (netip.AddrPort, error) {
	var at netip.AddrPort
	cfg := forwarderConfig{Lifeline: l.cfg.DieWithCaller, Listen: listen, Netns: from.Netns(), To: to}
	arg, err := json.Marshal(cfg)
	if err != nil {
		return at, err
	}
	logFile, err := os.Create(filepath.Join(l.Dir(), "forwarder.log"))
	if err != nil {
		return at, fmt.Errorf("forward to %s: %w", to, err)
	}
	defer logFile.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{forwarderName, string(arg)}
	cmd.Dir, cmd.Stderr = "/", logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	said, err := cmd.StdoutPipe()
	if err != nil {
		return at, fmt.Errorf("forward to %s: %w", to, err)
	}
	var lifeline io.Closer
	if cfg.Lifeline {
		if lifeline, err = cmd.StdinPipe(); err != nil {
			return at, fmt.Errorf("forward to %s: %w", to, err)
		}
	}
	if err := cmd.Start(); err != nil {
		return at, fmt.Errorf("forward to %s: %w", to, err)
	}
	text, err := io.ReadAll(said)
	p := process{cmd.Process.Pid, startTime(cmd.Process.Pid)}
	go func() { _ = cmd.Wait() }() // only to reap it
	if err == nil {
		at, err = netip.ParseAddrPort(strings.TrimSpace(string(text)))
	}
	if err != nil {
		return at, fmt.Errorf("forward to %s: %w", to, errors.Join(err, p.kill(time.Second), logEnd(logFile.Name())))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if lifeline != nil {
		l.lifelines = append(l.lifelines, lifeline)
	}
	l.record.Forwarders = append(l.record.Forwarders, p)
	return at, l.record.save()
}

// forwarderMain listens, prints its address, and forwards until it is killed.
func forwarderMain() int {
	var cfg forwarderConfig
	if err := json.Unmarshal([]byte(os.Args[1]), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, "read forwarder's configuration:", err)
		return 1
	}
	if cfg.Lifeline {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // ends when the lab's process is gone
			os.Exit(0)
		}()
	}
	var listener net.Listener
	var err error
	for _, a := range cfg.Listen {
		if listener, err = net.Listen("tcp", a.String()); err == nil {
			break
		}
	}
	if err != nil || listener == nil {
		fmt.Fprintln(os.Stderr, "listen:", err)
		return 1
	}
	fmt.Println(listener.Addr())
	_ = os.Stdout.Close() // Forward reads to the end
	dial := dialer(cfg.Netns)
	for {
		conn, err := listener.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "accept:", err)
			return 1
		}
		go forward(conn.(*net.TCPConn), dial, cfg.To)
	}
}

func forward(client *net.TCPConn, dial func(context.Context, string, string) (net.Conn, error), to netip.AddrPort) {
	defer client.Close()
	conn, err := dial(context.Background(), "tcp", to.String())
	if err != nil {
		return // this closes the client's connection
	}
	server := conn.(*net.TCPConn)
	defer server.Close()
	var both sync.WaitGroup
	for _, way := range [][2]*net.TCPConn{{client, server}, {server, client}} {
		both.Go(func() {
			_, _ = io.Copy(way[1], way[0]) // either side may close at any time
			_ = way[1].CloseWrite()
		})
	}
	both.Wait()
}
