package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"hairpin/netdev"
)

// Host is a network namespace on the underlay, such as an external client or the machine of the API
// server. Its file system is that of the machine.
type Host struct {
	lab       *Lab
	name      string
	holder    process
	addresses []netip.Prefix
}

// HostConfig describes a Host.
type HostConfig struct {
	Name      string
	Addresses []netip.Prefix // on eth0; empty means the next free ones of the underlay
}

// StartHost plugs a host into the underlay: eth0 with its addresses and default routes.
func (l *Lab) StartHost(ctx context.Context, cfg HostConfig) (*Host, error) {
	free, err := l.reserve(cfg.Name)
	if err != nil {
		return nil, fmt.Errorf("start host: %w", err)
	}
	if len(cfg.Addresses) == 0 {
		cfg.Addresses = free
	}
	network := networkConfig{Link: "eth0", Addresses: cfg.Addresses, Gateways: l.gatewaysOf(cfg.Addresses),
		MAC: underlayMAC(cfg.Addresses)}
	h, err := l.hold(holderConfig{Name: cfg.Name, Network: network}, nil)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start host: %w", err), l.forget(cfg.Name))
	}
	if err := errors.Join(h.plug(ctx, network.MAC), h.waitForAddresses(ctx, "eth0")); err != nil {
		return nil, errors.Join(fmt.Errorf("start host %s: %w", cfg.Name, err), h.Stop())
	}
	return h, nil
}

// gatewaysOf returns the gateways of the families that a host has.
func (l *Lab) gatewaysOf(addresses []netip.Prefix) []netip.Addr {
	var list []netip.Addr
	for _, g := range l.cfg.gateways() {
		for _, a := range addresses {
			if g.Masked().Contains(a.Addr()) {
				list = append(list, g.Addr())
				break
			}
		}
	}
	return list
}

// underlayMAC derives a host's MAC from its IPv4 address, as container engines do: 02:42 and the
// address.
func underlayMAC(addresses []netip.Prefix) string {
	for _, p := range addresses {
		if a := p.Addr(); a.Is4() {
			b := a.As4()
			return net.HardwareAddr{0x02, 0x42, b[0], b[1], b[2], b[3]}.String()
		}
	}
	b := addresses[0].Addr().As16()
	return net.HardwareAddr{0x02, 0x42, b[12], b[13], b[14], b[15]}.String()
}

// plug connects eth0 of the host with the underlay. It creates nothing in the machine's own network
// namespace.
func (h *Host) plug(ctx context.Context, mac string) error {
	return h.plugInto(ctx, UnderlayBridge, "eth0", mac)
}

// plugInto connects a link of the host with a bridge in the underlay's namespace.
func (h *Host) plugInto(ctx context.Context, to, link, mac string) error {
	address, err := net.ParseMAC(mac)
	if err != nil {
		return err
	}
	own, err := netns.GetFromPath(h.Netns())
	if err != nil {
		return fmt.Errorf("open network namespace of %s: %w", h.name, err)
	}
	defer own.Close()
	wire := h.lab.Host(underlayName)
	outer := h.UnderlayPort() + strings.TrimPrefix(link, "eth0")
	err = wire.Do(func() error {
		bridge, err := netlink.LinkByName(to)
		if err != nil {
			return err
		}
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: outer, MasterIndex: bridge.Attrs().Index, Flags: net.FlagUp},
			PeerName:  link, PeerNamespace: netlink.NsFd(own), PeerHardwareAddr: address,
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("make veth pair: %w", err)
		}
		return netlink.LinkSetUp(veth)
	})
	if err != nil {
		return fmt.Errorf("plug %s into the underlay: %w", h.name, err)
	}
	if h.lab.cfg.Offloads {
		return nil
	}
	// A frame between two veths has no checksum, and the userspace datapath without TSO ignores the
	// mark that says so: the receiver would drop the packet. With TSO, the underlay does what a NIC
	// would.
	if _, err := wire.Exec(ctx, "ethtool", "-K", outer, "tx", "off"); err != nil {
		return err
	}
	offloads := []string{"ethtool", "-K", link, "tx", "off"}
	if h.lab.cfg.TSO {
		// tx-checksum-sctp as hostnet/uplink and the entry script do
		offloads = []string{"ethtool", "-K", link, "gro", "on", "tx-checksum-sctp", "off"}
	}
	_, err = h.inNet(ctx, offloads...)
	return err
}

// UnderlayPort is the name of the underlay's bridge port that eth0 of the host is plugged into.
func (h *Host) UnderlayPort() string { return "v" + strconv.Itoa(h.holder.PID) }

// Join adds a link of the host to another network, with addresses. The first host that joins a
// network creates it; its name is short, such as "wire2". Nothing routes between the networks.
func (h *Host) Join(ctx context.Context, wire, link string, addresses ...netip.Prefix) error {
	err := h.lab.Host(underlayName).Do(func() error {
		err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: wire, Flags: net.FlagUp}})
		if errors.Is(err, unix.EEXIST) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("make wire %s: %w", wire, err)
	}
	mac := underlayMAC(addresses)
	if err := h.plugInto(ctx, wire, link, mac); err != nil {
		return err
	}
	return h.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return fmt.Errorf("find link %s: %w", link, err)
		}
		return configureLink(l, networkConfig{Addresses: addresses, MAC: mac})
	})
}

// waitForAddresses waits until the holder has added the addresses to the link.
func (h *Host) waitForAddresses(ctx context.Context, link string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var missing netip.Prefix
	err := Poll(ctx, 5*time.Millisecond, func() (bool, error) {
		have := map[netip.Addr]bool{}
		err := h.Do(func() error {
			l, err := netlink.LinkByName(link)
			if err != nil {
				return nil // not there yet
			}
			addrs, err := netdev.Addresses(l)
			for _, a := range addrs {
				ip, _ := netip.AddrFromSlice(a.IP)
				have[ip.Unmap()] = true
			}
			return err
		})
		for _, p := range h.addresses {
			if missing = p; !have[p.Addr()] {
				return false, err
			}
		}
		return true, err
	})
	if err != nil {
		return fmt.Errorf("wait for address %s on %s: %w", missing, link,
			errors.Join(err, logEnd(filepath.Join(h.Dir(), "holder.log"))))
	}
	return nil
}

// Poll calls done periodically until it returns true or fails. If ctx ends, it returns its cause.
func Poll(ctx context.Context, every time.Duration, done func() (bool, error)) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// Lab is the lab of the host.
func (h *Host) Lab() *Lab { return h.lab }

// Name is the host's name in the lab.
func (h *Host) Name() string { return h.name }

// Addresses returns the host's addresses on the underlay, with their prefix lengths, IPv4 first.
func (h *Host) Addresses() []netip.Prefix { return h.addresses }

// Dir is the host's directory on the machine: holder.log, and for a node "log", which is its
// /var/log.
func (h *Host) Dir() string { return filepath.Join(h.lab.Dir(), h.name) }

// Netns is the path of the host's network namespace, valid while the host runs.
func (h *Host) Netns() string { return fmt.Sprintf("/proc/%d/ns/net", h.holder.PID) }

// Do calls fn in the host's network namespace: its sockets and netlink requests belong to that
// namespace. Goroutines that fn starts do not run in it.
func (h *Host) Do(fn func() error) error { return withNetns(h.Netns(), fn) }

// DialContext connects to an IP address from the host's network namespace.
func (h *Host) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return dialer(h.Netns())(ctx, network, address)
}

// AddAddress adds an address to a link, such as a secondary address on lo.
func (h *Host) AddAddress(link string, p netip.Prefix) error {
	return h.Do(func() error { return addAddress(link, p) })
}

// Argv returns the command line that runs a command in the host's network and processes, on the
// machine's file system.
func (h *Host) Argv(args ...string) []string {
	return append([]string{"nsenter", "--target", strconv.Itoa(h.holder.PID), "--net", "--pid", "--"}, args...)
}

// Command prepares such a command. It ends with the host, and with ctx.
func (h *Host) Command(ctx context.Context, args ...string) *exec.Cmd {
	return enter(ctx, h.Argv(args...))
}

// Exec runs a command as Command does and returns its standard output. The error of a failed
// command has the end of its standard error.
func (h *Host) Exec(ctx context.Context, args ...string) (string, error) {
	return output(h.name, h.Command(ctx, args...), args)
}

// inNet is Exec of a Host, also for a Node: only the network is the host's.
func (h *Host) inNet(ctx context.Context, args ...string) (string, error) {
	return h.Exec(ctx, args...)
}

// Stop ends the host and everything in it.
func (h *Host) Stop() error {
	if err := h.holder.kill(10 * time.Second); err != nil {
		return fmt.Errorf("stop %s: %w", h.name, err)
	}
	if n := h.lab.Node(h.name); n != nil && n.disk != "" {
		if err := removeCgroups(cgroupOf(h.lab.Name(), h.name)); err != nil {
			return fmt.Errorf("stop %s: %w", h.name, err)
		}
	}
	return h.lab.forget(h.name)
}

// Running reports whether the host has not been stopped.
func (h *Host) Running() bool { return h.holder.alive() }

func enter(ctx context.Context, argv []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = nodeEnv()
	// nsenter waits for its child and does not forward signals, so both have their own process
	// group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		if errors.Is(err, unix.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	// a daemon that was just forked may hold the pipe open, for long on a busy machine
	cmd.WaitDelay = 30 * time.Second
	return cmd
}

func output(where string, cmd *exec.Cmd, args []string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		const keep = 4000
		said := strings.TrimSpace(stderr.String())
		line := strings.Join(args, " ")
		if len(line) > 200 {
			line = line[:200] + "…"
		}
		return stdout.String(), fmt.Errorf("%s: %s: %w: %s", where, line, err, said[max(0, len(said)-keep):])
	}
	return stdout.String(), nil
}
