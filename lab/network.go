package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// startNetwork configures the current network namespace as the operating system does on a real
// node: loopback, sysctls, and, whenever the link appears, its addresses and default routes. An
// Open vSwitch bridge of the userspace datapath appears again after each start of ovs-vswitchd.
func startNetwork(cfg networkConfig) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	if cfg.Router {
		if err := routerSysctls(); err != nil {
			return err
		}
	}
	if cfg.Link == "" {
		return nil
	}
	updates, err := watchLinks()
	if err != nil {
		return err
	}
	go func() {
		for {
			keepLink(cfg, updates)
			// Any error ends the subscription, also the loss of messages because this process got
			// no CPU.
			if updates, err = watchLinks(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	return nil
}

// watchLinks returns a channel with all links and later changes. On an error the channel is closed
// and empty.
func watchLinks() (<-chan netlink.LinkUpdate, error) {
	updates := make(chan netlink.LinkUpdate, 64)
	err := netlink.LinkSubscribeWithOptions(updates, nil,
		netlink.LinkSubscribeOptions{ListExisting: true, ErrorCallback: func(err error) {
			fmt.Fprintln(os.Stderr, "watch links:", err)
		}})
	if err != nil {
		closed := make(chan netlink.LinkUpdate)
		close(closed)
		return closed, fmt.Errorf("watch links: %w", err)
	}
	return updates, nil
}

// keepLink configures the link whenever it appears, until the updates end.
func keepLink(cfg networkConfig, updates <-chan netlink.LinkUpdate) {
	configured := 0 // interface index
	for u := range updates {
		name, index, up := u.Link.Attrs().Name, u.Link.Attrs().Index, u.Link.Attrs().Flags&net.FlagUp != 0
		switch {
		case u.Header.Type == unix.RTM_DELLINK && index == configured:
			configured = 0
		// ovs-vswitchd sets a new bridge down to change its MAC address, then up again. It writes
		// flags that it has read before, so a bridge that was set up meanwhile may stay down. The
		// kernel then removes routes and IPv6 addresses.
		case u.Header.Type == unix.RTM_NEWLINK && name == cfg.Link && (index != configured || !up):
			if err := configureLink(u.Link, cfg); err != nil {
				fmt.Fprintf(os.Stderr, "configure %s: %v\n", name, err)
				continue // the next change of the link retries
			}
			configured = index
		}
	}
}

func routerSysctls() error {
	for key, value := range map[string]string{
		"net/ipv4/ip_forward":                  "1",
		"net/ipv6/conf/all/forwarding":         "1",
		"net/ipv4/conf/all/rp_filter":          "0",
		"net/ipv4/conf/default/rp_filter":      "0",
		"net/ipv4/conf/all/send_redirects":     "0",
		"net/ipv4/conf/default/send_redirects": "0",
	} {
		if err := setSysctl(key, value); err != nil {
			return err
		}
	}
	return nil
}

func setSysctl(key, value string) error {
	path := filepath.Join("/proc/sys", key)
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl %s: %w", strings.ReplaceAll(key, "/", "."), err)
	}
	return nil
}

// configureLink gives a link its addresses and routes, and sets it up.
func configureLink(link netlink.Link, cfg networkConfig) error {
	if mac, err := net.ParseMAC(cfg.MAC); err == nil && link.Attrs().HardwareAddr.String() != mac.String() {
		if err := netlink.LinkSetHardwareAddr(link, mac); err != nil {
			return fmt.Errorf("set address of link: %w", err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	for _, p := range cfg.Addresses {
		if err := netlink.AddrReplace(link, address(p)); err != nil {
			return fmt.Errorf("add address %s: %w", p, err)
		}
	}
	for _, g := range cfg.Gateways {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: g.AsSlice(), Dst: everything(g)}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("add default route via %s: %w", g, err)
		}
	}
	return nil
}

// address returns an address without duplicate address detection, which would delay an IPv6 address
// by a second.
func address(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func everything(of netip.Addr) *net.IPNet {
	if of.Is4() {
		return ipNet(netip.MustParsePrefix("0.0.0.0/0"))
	}
	return ipNet(netip.MustParsePrefix("::/0"))
}

// addAddress adds an address to a link of the current network namespace. It is no error if the link
// has it.
func addAddress(linkName string, p netip.Prefix) error {
	link, err := netlink.LinkByName(linkName)
	if err != nil {
		return fmt.Errorf("find link %s: %w", linkName, err)
	}
	if err := netlink.AddrReplace(link, address(p)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %s to %s: %w", p, linkName, err)
	}
	return nil
}
