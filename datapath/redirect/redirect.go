// Package redirect is the wanted or found redirect of clients outside around the host's IP stack:
// which links have one of the two eBPF programs of apply/redirect, and for which addresses and
// ports.
//
// A packet for one of these that comes in by a link with claims.ProgramRequest goes to the gateway
// bridge, and what the gateway router answers from there, claims.ProgramReply sends on as the host
// would route it.
package redirect

import (
	"net/netip"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/shell"
	"hairpin/delta"
)

// State is programs and what they look for. Services without a program are nowhere.
type State struct {
	Programs map[string]Program // by link
	Services map[Service]Way
}

// Way is how requests for a Service get to the gateway router.
type Way struct {
	// Tracked: the gateway bridge gives the client the host's masquerade address, and so knows the
	// answers. Else it knows them by their source.
	Tracked bool
	Owner   cluster.Owner
}

// Program is a program at a link's ingress.
type Program struct {
	Link string
	// claims.ProgramRequest or claims.ProgramReply; of a found one that is neither, as another
	// version's, it says what it is
	Name string
	// MAC is the receiver of requests, which go to the link with claims.ProgramReply; zero for the
	// other program.
	MAC   cluster.MAC
	MTU   int // of pods, bytes: longer requests are left to the host; 0 for the other program
	Owner cluster.Owner
}

// Service is an address and port that clients outside ask.
type Service struct {
	Addr     netip.AddrPort
	Protocol cluster.Protocol
}

// Compare orders Services by address, port and protocol.
func (s Service) Compare(t Service) int {
	if c := s.Addr.Compare(t.Addr); c != 0 {
		return c
	}
	return int(s.Protocol) - int(t.Protocol)
}

// Delta is what makes the found redirect into the wanted one.
type Delta struct {
	Programs delta.Delta[string, Program]
	Services delta.Delta[Service, Way]
}

// Diff compares what must be with what is. Owners do not count, the kernel does not know them.
func Diff(want, have State) Delta {
	return Delta{
		Programs: delta.Of(want.Programs, have.Programs, func(w, h Program) bool { h.Owner = w.Owner; return w == h }),
		Services: delta.Of(want.Services, have.Services, func(w, h Way) bool { return w.Tracked == h.Tracked }),
	}
}

// Empty reports whether there is nothing to do.
func (d Delta) Empty() bool { return d.Count() == 0 }

// Count is the number of things that differ.
func (d Delta) Count() int { return d.Programs.Count() + d.Services.Count() }

// Grow is the part that makes and changes.
func (d Delta) Grow() Delta { return Delta{Programs: d.Programs.Grow(), Services: d.Services.Grow()} }

// Shrink is the part that removes.
func (d Delta) Shrink() Delta {
	return Delta{Programs: d.Programs.Shrink(), Services: d.Services.Shrink()}
}

// Print writes one line for each program, in words of tc, and one for each element of the map that
// both look at.
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

// String returns "dev eth0 ingress hp_request", and the receiver of requests.
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
