package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// holderName is the argv[0] that makes a program with this package in it a holder. The program
// starts itself again as holder of a namespace, so tests need no second binary. The function init
// does it, so tests need no TestMain.
const holderName = "hairpin-lab-holder"

// holderConfig is the configuration of a holder, as JSON in its second argument.
type holderConfig struct {
	Name     string      // host name
	Lifeline bool        // exit at end of standard input
	Root     *rootConfig `json:",omitempty"` // nil: the machine's own file system
	Network  networkConfig
}

// networkConfig describes what the operating system configures in the network of a real node.
type networkConfig struct {
	Link      string         `json:",omitempty"` // gets the addresses when it appears; empty: nothing to do
	MAC       string         `json:",omitempty"`
	Addresses []netip.Prefix `json:",omitempty"`
	Gateways  []netip.Addr   `json:",omitempty"`
	Router    bool           `json:",omitempty"` // forwards packets
}

func init() {
	if os.Args[0] == holderName {
		os.Exit(holderMain())
	}
}

// holderMain runs as process 1 of a node's or host's process namespace. It sets the namespaces up,
// reports that on descriptor 3, keeps addresses on the bridge, and reaps orphaned processes.
func holderMain() int {
	status := os.NewFile(3, "status")
	err := holderSetup()
	if err != nil {
		fmt.Fprint(status, err)
		return 1
	}
	fmt.Fprint(status, "ok")
	status.Close()
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	for range children {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if pid <= 0 && !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	return 0
}

func holderSetup() error {
	var cfg holderConfig
	if err := json.Unmarshal([]byte(os.Args[1]), &cfg); err != nil {
		return fmt.Errorf("read holder's configuration: %w", err)
	}
	if cfg.Lifeline {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // ends when the lab's process is gone
			os.Exit(0)
		}()
	}
	if cfg.Root != nil {
		if err := unix.Sethostname([]byte(cfg.Name)); err != nil {
			return fmt.Errorf("set host name: %w", err)
		}
		if err := enterRoot(*cfg.Root); err != nil {
			return fmt.Errorf("make file system: %w", err)
		}
	}
	if err := startNetwork(cfg.Network); err != nil {
		return fmt.Errorf("set network up: %w", err)
	}
	return nil
}

// startHolder starts a holder in fresh namespaces and waits until it has set them up. Its log is in
// dir. With Lifeline, it ends with the calling process.
func startHolder(cfg holderConfig, dir string) (p process, lifeline io.Closer, err error) {
	arg, err := json.Marshal(cfg)
	if err != nil {
		return p, nil, err
	}
	logFile, err := os.Create(filepath.Join(dir, "holder.log"))
	if err != nil {
		return p, nil, err
	}
	defer logFile.Close()
	statusR, statusW, err := os.Pipe()
	if err != nil {
		return p, nil, err
	}
	defer statusR.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{holderName, string(arg)}
	cmd.Env = nodeEnv()
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.ExtraFiles = []*os.File{statusW}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWPID}
	if cfg.Root != nil {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNS | unix.CLONE_NEWUTS
	}
	if cfg.Lifeline {
		if lifeline, err = cmd.StdinPipe(); err != nil {
			statusW.Close()
			return p, nil, err
		}
	}
	err = cmd.Start()
	statusW.Close()
	if err != nil {
		return p, nil, fmt.Errorf("start holder: %w", err)
	}
	p = process{cmd.Process.Pid, startTime(cmd.Process.Pid)}
	go func() { _ = cmd.Wait() }() // only to reap it; its exit status does not matter
	said, err := io.ReadAll(statusR)
	if err == nil && string(said) != "ok" {
		err = errors.New(strings.TrimSpace(string(said)))
		if len(said) == 0 {
			err = fmt.Errorf("holder ended early: %w", logEnd(logFile.Name()))
		}
	}
	if err != nil {
		return p, nil, err
	}
	return p, lifeline, nil
}

// nodeEnv returns the environment of all commands in a node.
func nodeEnv() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LANG=C.UTF-8", "TERM=" + os.Getenv("TERM"),
	}
}
