// Package redirect describes the wanted or found redirect of external clients around the host's IP
// stack. A State has the links with one of the two eBPF programs of apply/redirect, and the
// addresses and ports for which they redirect.
//
// claims.ProgramRequest on a link redirects packets to these addresses to the gateway bridge. On
// the bridge, claims.ProgramReply sends the replies of the gateway router on as the host would
// route them.
package redirect

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/shell"
	"hairpin/datapath/statemap"
	"hairpin/delta"
)

// State holds the programs and the Services that they look up. No Services exist without a program.
type State struct {
	Programs map[string]Program // by link
	Services map[Service]Path
}

// Path is the path of requests for a Service to the gateway router.
type Path struct {
	// Tracked: the gateway bridge translates the client to the host's masquerade address, and so
	// recognizes the replies. Otherwise it recognizes them by their source.
	Tracked bool
	Owner   cluster.Owner
}

// Program is a program at a link's ingress.
type Program struct {
	Link string
	// Name is claims.ProgramRequest or claims.ProgramReply. Of a found program that is neither,
	// such as one of another version, it is a description.
	Name string
	// MAC is of a claims.ProgramReply only: the destination MAC of requests, which are redirected
	// to its link.
	MAC   cluster.MAC
	MTU   int // of a claims.ProgramReply only: the pods' MTU, bytes; longer requests are left to the host
	Owner cluster.Owner
}

// Service is an address and port that external clients use.
type Service struct {
	Addr     netip.AddrPort
	Protocol cluster.Protocol
}

// Compare orders Services by address, port and protocol.
func (s Service) Compare(t Service) int {
	return cmp.Or(s.Addr.Compare(t.Addr), cmp.Compare(s.Protocol, t.Protocol))
}

// Delta is the difference between the wanted and the found redirect.
type Delta struct {
	Programs delta.Delta[string, Program]
	Services delta.Delta[Service, Path]
}

// Diff compares the wanted with the found State. It ignores owners, which the kernel does not
// store.
func Diff(want, have State) Delta { return statemap.Diff(Maps, &want, &have) }

// Empty reports whether there is nothing to do.
func (d Delta) Empty() bool { return d.Count() == 0 }

// Count returns the number of differences.
func (d Delta) Count() int { return statemap.Count(Maps, &d) }

// Grow returns the part that adds and changes.
func (d Delta) Grow() Delta { return statemap.Grow(Maps, &d) }

// Shrink returns the part that removes.
func (d Delta) Shrink() Delta { return statemap.Shrink(Maps, &d) }

// Print writes one line per program, similar to tc, and one per element of the map that both
// programs use.
func Print(s State) string {
	var b strings.Builder
	for _, link := range delta.Keys(s.Programs) {
		line(&b, s.Programs[link].String(), s.Programs[link].Owner)
	}
	for _, k := range delta.Sorted(s.Services, Service.Compare) {
		words := k.String()
		if s.Services[k].Tracked {
			words += " tracked"
		}
		line(&b, words, s.Services[k].Owner)
	}
	return b.String()
}

func line(b *strings.Builder, words string, o cluster.Owner) {
	b.WriteString(words)
	if o != (cluster.Owner{}) {
		b.WriteString(" # " + o.String())
	}
	b.WriteByte('\n')
}

// String returns "dev eth0 ingress hp_request", and the destination MAC of requests.
func (p Program) String() string {
	words := []string{"dev", shell.Word(p.Link), "ingress", p.Name}
	if p.MAC != (cluster.MAC{}) {
		words = append(words, "lladdr", p.MAC.String(), "mtu", strconv.Itoa(p.MTU))
	}
	return strings.Join(words, " ")
}

// String returns "hp_services tcp 192.0.2.2:30080".
func (s Service) String() string {
	return claims.MapServices + " " + s.Protocol.String() + " " + s.Addr.String()
}
