package cni_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"hairpin/lab"
)

// TestOffloadsFollowTheSwitch: Open vSwitch is started with TSO, and without again. Running and new
// pods send checksums and segments as it supports them: their data arrives complete, in both
// families.
func TestOffloadsFollowTheSwitch(t *testing.T) {
	w, n := single(t)
	if n.Datapath() != "netdev" {
		t.Skip("only the userspace datapath looks at packets")
	}
	var pods []*sandbox
	for i, tso := range []bool{false, true, false, true} {
		if i > 0 {
			restartWithTSO(t, n, tso)
			w.ready(n)
		}
		s := w.sandbox(n, fmt.Sprintf("pod-%d", i))
		serve(t, s.path())
		s.add()
		pods = append(pods, s)
		for _, p := range pods {
			eventually(t, 30*time.Second, fmt.Sprintf("the offloads of %s fit TSO %v", p.pod, tso),
				func() error { return p.offloads(tso) })
		}
		for _, from := range pods {
			to := pods[(i+1)%len(pods)]
			for _, ip := range to.ips {
				eventually(t, 30*time.Second, "UDP after a restart",
					func() error { return get(from.path(), "udp", ip, port) })
				if err := send(from.path(), to.path(), ip); err != nil {
					t.Errorf("TSO %v, %s to %s: %v", tso, from.pod, ip, err)
				}
			}
		}
		s.reachable()
	}
	for _, s := range pods {
		s.del()
	}
}

// restartWithTSO acts like the entry script.
func restartWithTSO(t testing.TB, n *lab.Node, on bool) {
	t.Helper()
	kill(t, n, lab.VSwitchd)
	sh(t, n,
		fmt.Sprintf("ovs-vsctl --no-wait set Open_vSwitch . other_config:userspace-tso-enable=%[1]v "+
			"external_ids:hairpin-tso=%[1]v", on))
	must(t, n.Start(t.Context(), lab.VSwitchd))
}

// offloads returns what is wrong with the offloads of the sandbox's end.
func (s *sandbox) offloads(tso bool) error {
	out, err := s.node.Exec(s.w.t.Context(), "ip", "netns", "exec", s.netns(), "ethtool", "-k", "eth0")
	if err != nil {
		return err
	}
	for feature, want := range map[string]bool{"tx-checksum-ip-generic": tso, "tx-tcp-segmentation": tso,
		"tx-checksum-sctp": false, "tx-udp-segmentation": false} {
		on := strings.Contains(out, feature+": on")
		if on != want && (feature != "tx-udp-segmentation" || tso) {
			return fmt.Errorf("%s is %v", feature, on)
		}
	}
	return nil
}

// send sends more than any buffer holds over one TCP connection, and compares the received data.
func send(from, to string, ip netip.Addr) error {
	text := bytes.Repeat([]byte("not all the same: 0123456789\n"), 200_000)
	var l net.Listener
	err := inside(to, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(ip, 0).String())
		return err
	})
	if err != nil {
		return err
	}
	defer l.Close()
	deadline := time.Now().Add(30 * time.Second)
	arrived := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			defer c.Close()
			_ = c.SetDeadline(deadline) // of a socket that is open
			sum := sha256.New()
			_, err = io.Copy(sum, c)
			if want := sha256.Sum256(text); err == nil && !bytes.Equal(sum.Sum(nil), want[:]) {
				err = errors.New("something else arrived")
			}
		}
		arrived <- err
	}()
	err = inside(from, func() error {
		c, err := (&net.Dialer{Deadline: deadline}).Dial("tcp", l.Addr().String())
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(deadline)
		_, err = c.Write(text)
		return err
	})
	if err != nil {
		return err
	}
	return <-arrived
}
