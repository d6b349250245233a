package netdev_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/netdev"
)

// in calls do in a new network namespace, with a veth pair that is up.
func in(t *testing.T, do func() error) {
	t.Helper()
	if err := inside.Do(insidetest.NetNS(t), func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a", Flags: net.FlagUp},
			PeerName: "b"}); err != nil {
			return err
		}
		return do()
	}); err != nil {
		t.Fatal(err)
	}
}

func TestSysctl(t *testing.T) {
	in(t, func() error {
		const path = "net/ipv6/conf/a/accept_ra"
		if err := netdev.SetSysctl(path, "0"); err != nil {
			return err
		}
		now, err := netdev.Sysctl(path)
		if now != "0" {
			t.Errorf("%s is %q", path, now)
		}
		if _, err := netdev.Sysctl("net/ipv6/conf/none/accept_ra"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("of a link that is not there: %v", err)
		}
		return err
	})
}

func TestEthtool(t *testing.T) {
	in(t, func() error {
		for _, value := range []uint32{0, 1, 0} {
			if _, err := netdev.Ethtool("a", unix.ETHTOOL_STXCSUM, value); err != nil {
				return err
			}
			now, err := netdev.Ethtool("a", unix.ETHTOOL_GTXCSUM, 0)
			if err != nil {
				return err
			}
			if (now != 0) != (value != 0) {
				t.Errorf("set to %d, it is %d", value, now)
			}
		}
		return nil
	})
}

// TestFeatures: each feature changes alone; missing ones are ignored.
func TestFeatures(t *testing.T) {
	in(t, func() error {
		if on, err := netdev.Feature("a", "nothing"); err != nil || on {
			t.Errorf("a feature that is none: %v, %v", on, err)
		}
		for _, on := range []bool{false, true, false} {
			if err := netdev.SetFeatures("a",
				map[string]bool{"tx-checksum-ip-generic": true, "tx-udp-segmentation": on, "tx-checksum-sctp": on,
					"nothing": on}); err != nil {
				return err
			}
			out, err := exec.Command("ethtool", "-k", "a").CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			for feature, want := range map[string]bool{"tx-checksum-ip-generic": true, "tx-udp-segmentation": on,
				"tx-checksum-sctp": on, "tx-tcp-segmentation": true} {
				if !strings.Contains(string(out), feature+": "+map[bool]string{true: "on", false: "off"}[want]) {
					t.Errorf("%s is not %v:\n%s", feature, want, out)
				}
				if got, err := netdev.Feature("a", feature); err != nil || got != want {
					t.Errorf("%s is read as %v, %v", feature, got, err)
				}
			}
		}
		return nil
	})
}

// TestPackets: the socket receives the packets from a link that pass the filter.
func TestPackets(t *testing.T) {
	in(t, func() error {
		link, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		f, err := netdev.Packets(unix.SOCK_DGRAM, link.Attrs().Index, []bpf.Instruction{ // IPv4, UDP to port 5353
			bpf.LoadAbsolute{Off: 22, Size: 2},
			bpf.JumpIf{Val: 5353, SkipFalse: 1},
			bpf.RetConstant{Val: 256},
			bpf.RetConstant{Val: 0},
		})
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		for to, text := range map[string]string{"127.0.0.1:5352": "other", "127.0.0.1:5353": "this"} {
			c, err := net.Dial("udp4", to)
			if err != nil {
				return err
			}
			if _, err := c.Write([]byte(text)); err != nil {
				return err
			}
			_ = c.Close()
		}
		if err := f.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		packet := make([]byte, 256)
		n, err := f.Read(packet)
		if err == nil && (n != 32 || string(packet[28:n]) != "this") {
			t.Errorf("heard %q", packet[:n])
		}
		return err
	})
}
