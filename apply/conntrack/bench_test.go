package conntrack

import (
	"encoding/binary"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/datapath/conn"
)

var most = flag.Int("entries", 1_000_000, "how many entries BenchmarkEntries makes")

// BenchmarkEntries reads a kernel table with many connections to a Service, and deletes those to
// one of its two endpoints. heap-MB is the largest heap during that time, without garbage.
func BenchmarkEntries(b *testing.B) {
	ns := insidetest.NetNS(b)
	raise(b, *most+1000)
	for n := *most / 100; n <= *most; n *= 10 {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			if err := inside.Do(ns, func() error {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				return measure(b, n)
			}); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func measure(b *testing.B, n int) error {
	at := netip.MustParseAddrPort
	vip, gone, lives := at("10.96.0.10:53"), at("10.244.1.3:53"), at("10.244.2.3:53")
	want := conn.State{UDP: map[netip.AddrPort]conn.Targets{vip: {Live: []netip.AddrPort{lives}}}}
	target := New(Config{})
	for b.Loop() {
		if err := fill(n, vip, gone, lives); err != nil {
			return err
		}
		end := watchHeap()
		begin := time.Now()
		have, err := target.Read(b.Context())
		if err != nil {
			return err
		}
		read, heap := time.Since(begin), end()
		b.ReportMetric(read.Seconds(), "read-s")
		b.ReportMetric(heap, "read-heap-MB")
		end, begin = watchHeap(), time.Now()
		if err := target.Apply(b.Context(), conn.Diff(want, have)); err != nil {
			return err
		}
		b.ReportMetric(time.Since(begin).Seconds(), "end-half-s")
		b.ReportMetric(end(), "end-heap-MB")
		if have, err = target.Read(b.Context()); err != nil {
			return err
		}
		if live := have.UDP[vip].Live; len(live) != 1 || live[0] != lives {
			b.Errorf("left: %v", live)
		}
	}
	return nil
}

// watchHeap returns a function that reports the maximum of reachable heap memory, in MB.
func watchHeap() (end func() float64) {
	var highest atomic.Uint64
	stop, done := make(chan struct{}), make(chan struct{})
	look := func() {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		highest.Store(max(highest.Load(), m.HeapAlloc))
	}
	look()
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				look()
			}
		}
	}()
	return func() float64 {
		close(stop)
		<-done
		return float64(highest.Load()) / (1 << 20)
	}
}

// raise sets the kernel's limit to so many entries, and restores it later.
func raise(b *testing.B, n int) {
	const limit = "/proc/sys/net/netfilter/nf_conntrack_max"
	old, err := os.ReadFile(limit)
	if err != nil {
		b.Skip(err)
	}
	if now, _ := strconv.Atoi(strings.TrimSpace(string(old))); now >= n {
		return
	}
	if err := os.WriteFile(limit, []byte(strconv.Itoa(n)), 0); err != nil {
		b.Skip(err)
	}
	b.Cleanup(func() {
		if err := os.WriteFile(limit, old, 0); err != nil {
			b.Error(err)
		}
	})
}

// fill makes entries of UDP connections to a Service, half of them to each endpoint, many per
// message.
func fill(n int, vip netip.AddrPort, ends ...netip.AddrPort) error {
	s, err := nl.GetNetlinkSocketAt(-1, -1, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer s.Close()
	address := unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	const batch = 200
	for i := 0; i < n; i += batch {
		var message []byte
		for j := i; j < min(i+batch, n); j++ {
			client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 245, byte(j >> 16), byte(j >> 8)}),
				uint16(1024+j&255))
			message = append(message, entryMessage(client, vip, ends[j%len(ends)])...)
		}
		if err := unix.Sendto(s.GetFd(), message, 0, &address); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
	}
	return nil
}

// entryMessage returns a request to the kernel for an entry that lasts a quarter of an hour.
func entryMessage(client, vip, to netip.AddrPort) []byte {
	direction := func(kind int, src, dst netip.AddrPort) *nl.RtAttr {
		t := nl.NewRtAttr(unix.NLA_F_NESTED|kind, nil)
		ip := t.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
		ip.AddRtAttr(nl.CTA_IP_V4_SRC, src.Addr().AsSlice())
		ip.AddRtAttr(nl.CTA_IP_V4_DST, dst.Addr().AsSlice())
		p := t.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
		p.AddRtAttr(nl.CTA_PROTO_NUM, []byte{unix.IPPROTO_UDP})
		p.AddRtAttr(nl.CTA_PROTO_SRC_PORT, binary.BigEndian.AppendUint16(nil, src.Port()))
		p.AddRtAttr(nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, dst.Port()))
		return t
	}
	req := request(unix.AF_INET, nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE)
	req.AddData(direction(nl.CTA_TUPLE_ORIG, client, vip))
	req.AddData(direction(nl.CTA_TUPLE_REPLY, to, client))
	req.AddData(nl.NewRtAttr(nl.CTA_TIMEOUT, binary.BigEndian.AppendUint32(nil, 900)))
	return req.Serialize()
}
