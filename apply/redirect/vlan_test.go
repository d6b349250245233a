package redirect_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	program "hairpin/apply/redirect"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/redirect"
)

// TestVLAN checks, with real frames, that a NIC's program ignores frames with a VLAN tag, which
// belong to the VLAN's own link. The program of that link redirects them.
func TestVLAN(t *testing.T) {
	each(t, func(t *testing.T, s system) {
		const vlan = 7
		own := fmt.Sprintf("nic0.%d", vlan)
		var links []string
		s.do(t, func() error {
			out, err := exec.Command("ip", "link", "add", "link", "nic0", "name", own, "type", "vlan", "id",
				fmt.Sprint(vlan)).CombinedOutput()
			if err != nil && strings.Contains(string(out), "Unknown device type") {
				t.Log("this kernel has no VLAN links: the NIC's own program only")
				return nil
			}
			links = append(links, own)
			return err
		})
		state := rich()
		for _, l := range links {
			state.Programs[l] = redirect.Program{Link: l, Name: claims.ProgramRequest}
		}
		// a VLAN link cannot be up without its NIC
		for _, l := range append([]string{"nic0", "nic0-peer", "br-a", "br-a-peer"}, links...) {
			s.run(t, "ip", "link", "set", l, "up")
		}
		var mac net.HardwareAddr
		s.do(t, func() error {
			nic, err := netlink.LinkByName("nic0")
			if err == nil {
				mac = nic.Attrs().HardwareAddr
			}
			return err
		})
		target := s.target(t).(*program.Target)
		if err := target.Apply(t.Context(), redirect.Diff(state, redirect.State{})); err != nil {
			t.Fatal(err)
		}
		taken := func() uint64 {
			c, err := target.Counters()
			if err != nil {
				t.Fatal(err)
			}
			return c.Requests
		}
		// try sends frames of a VLAN (0: none), and then one without a tag, which is always
		// redirected.
		try := func(tag uint16, want uint64) {
			t.Helper()
			before := taken()
			s.do(t, func() error { return send(request(mac, tag), request(mac, tag), request(mac, 0)) })
			var got uint64
			for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline) &&
				got < want; time.Sleep(time.Millisecond) {
				got = taken() - before
			}
			if got != want {
				t.Errorf("VLAN %d: %d frames were taken, want %d", tag, got, want)
			}
		}
		try(0, 3)
		try(vlan+1, 1)
		if len(links) > 0 {
			try(vlan, 3)
		} else {
			try(vlan, 1)
		}
	})
}

// request returns a frame to a MAC and a Service of rich, in a VLAN unless the tag is 0.
func request(to net.HardwareAddr, tag uint16) []byte {
	frame := slices.Concat(to, []byte{2, 0, 0, 0, 0, 9})
	if tag != 0 {
		frame = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(frame, unix.ETH_P_8021Q), tag)
	}
	frame = binary.BigEndian.AppendUint16(frame, unix.ETH_P_IP)
	ip := bytes.Repeat([]byte{0}, 40)
	ip[0], ip[3], ip[8], ip[9] = 0x45, 40, 64, byte(cluster.TCP)
	copy(ip[12:], netip.MustParseAddr("192.0.2.100").AsSlice())
	copy(ip[16:], netip.MustParseAddr("192.0.2.2").AsSlice())
	binary.BigEndian.PutUint16(ip[20:], 40000)
	binary.BigEndian.PutUint16(ip[22:], 30080)
	return append(frame, ip...)
}

// send sends frames from the peer of nic0.
func send(frames ...[]byte) error {
	i, err := index("nic0-peer")
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	for _, f := range frames {
		if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: i}); err != nil {
			return err
		}
	}
	return nil
}
