package knft_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/apply/inside/insidetest"
	"hairpin/cluster"
	"hairpin/datapath/nft"
)

// big is the example with 10 000 node ports.
func big(b testing.TB) nft.State {
	s := example(b)
	m := s[nft.Inet].Maps["nodeports4"]
	for i := range 10000 {
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80)
		m.Elements.Put(nft.Element{Protocol: cluster.TCP, Port: uint16(10000 + i)}, nft.Target{
			Addr: to, Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: fmt.Sprintf("web-%d", i)},
		})
	}
	return s
}

func BenchmarkTenThousand(b *testing.B) {
	s := system{insidetest.NetNS(b), []string{"nft"}}
	target := s.target(b)
	want := big(b)
	key := nft.Element{Protocol: cluster.TCP, Port: 15000}
	without, other := big(b), big(b)
	without[nft.Inet].Maps["nodeports4"].Elements.Delete(key)
	other[nft.Inet].Maps["nodeports4"].Elements.Put(key, nft.Target{Addr: netip.MustParseAddrPort("10.96.0.1:1")})
	apply := func(b *testing.B, to, from nft.State) {
		if err := target.Apply(b.Context(), nft.Diff(to, from)); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			apply(b, want, nft.State{})
			apply(b, nft.State{}, want)
		}
	})
	apply(b, want, nft.State{})
	b.Run("diff", func(b *testing.B) {
		for b.Loop() {
			nft.Diff(want, without)
		}
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			have, err := target.Read(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if d := nft.Diff(want, have); !d.Empty() {
				b.Fatal(d)
			}
		}
	})
	b.Run("nft alone lists", func(b *testing.B) {
		for b.Loop() {
			s.run(b, "", "nft", "--stateless", "list", "table", "inet", "hairpin")
		}
	})
	b.Run("nft alone starts", func(b *testing.B) {
		for b.Loop() {
			s.run(b, "", "nft", "--version")
		}
	})
	b.Run("parse", func(b *testing.B) {
		text := nft.Print(want)
		for b.Loop() {
			if _, err := nft.Parse(text); err != nil {
				b.Fatal(err)
			}
		}
	})
	one := func(b *testing.B, make func(nft.Delta)) { // adds and deletes one element in turn
		deltas := []nft.Delta{nft.Diff(without, want), nft.Diff(want, without)}
		n, cpu := 0, cpuTime(b)
		for b.Loop() {
			make(deltas[n%2])
			n++
		}
		b.ReportMetric(float64(cpuTime(b)-cpu)/float64(n), "CPU-ns/op")
		if n%2 == 1 {
			make(deltas[1])
		}
	}
	b.Run("one element", func(b *testing.B) {
		one(b, func(d nft.Delta) {
			if err := target.Apply(b.Context(), d); err != nil {
				b.Fatal(err)
			}
		})
	})
	b.Run("one element by nft", func(b *testing.B) { one(b, func(d nft.Delta) { s.hand(b, d.String()) }) })
	b.Run("change one", func(b *testing.B) {
		for b.Loop() {
			apply(b, other, want)
			apply(b, want, other)
		}
	})
}

// cpuTime returns the CPU time of this process and of its ended children.
func cpuTime(b *testing.B) time.Duration {
	var sum time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}
