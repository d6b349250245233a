// Package redirecttest draws random redirects, for property tests here and against the real kernel.
package redirecttest

import (
	"net/netip"

	"pgregory.net/rapid"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/redirect"
)

// Links returns the links that may have claims.ProgramRequest in a drawn state, Bridges those that
// may have claims.ProgramReply.
func Links() []string   { return []string{"nic0", "nic1", "nic2"} }
func Bridges() []string { return []string{"br-a", "br-b"} }

// States draws states that the kernel accepts: Services only with programs, and at most one bridge.
func States() *rapid.Generator[redirect.State] {
	return rapid.Custom(func(t *rapid.T) redirect.State {
		owner := cluster.Owner{Kind: "Node", Name: "node-a"}
		s := redirect.State{Programs: map[string]redirect.Program{}, Services: map[redirect.Service]redirect.Path{}}
		if !rapid.Bool().Draw(t, "redirect") {
			return s
		}
		bridge := rapid.SampledFrom(Bridges()).Draw(t, "bridge")
		mac := cluster.MAC{0x0a, 0x58, 5: byte(rapid.IntRange(1, 3).Draw(t, "MAC"))}
		s.Programs[bridge] = redirect.Program{Link: bridge, Name: claims.ProgramReply, MAC: mac,
			MTU: rapid.SampledFrom([]int{1280, 1400}).Draw(t, "MTU"), Owner: owner}
		for _, l := range Links() {
			if rapid.Bool().Draw(t, l) {
				s.Programs[l] = redirect.Program{Link: l, Name: claims.ProgramRequest, Owner: owner}
			}
		}
		for range rapid.IntRange(0, 6).Draw(t, "services") {
			a := netip.MustParseAddr(rapid.SampledFrom([]string{"192.0.2.2", "198.51.100.2", "2001:db8::2"}).Draw(t,
				"address"))
			port := uint16(rapid.SampledFrom([]int{1, 30080, 32767, 65535}).Draw(t, "port"))
			p := rapid.SampledFrom([]cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP}).Draw(t, "protocol")
			s.Services[redirect.Service{Addr: netip.AddrPortFrom(a, port),
				Protocol: p}] = redirect.Path{Tracked: rapid.Bool().Draw(t, "tracked"), Owner: owner}
		}
		return s
	})
}
