package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/host"
)

// reading is one Read.
type reading struct {
	t      *Target
	want   host.State
	state  host.State
	names  map[int]string // of links; empty for a missing link
	byName map[string]netlink.Link
}

// Read returns Hairpin's objects, the wanted links that are up, and the sysctls that are wanted or
// have a former value.
func (t *Target) Read(ctx context.Context) (host.State, error) {
	r := &reading{
		t: t, want: t.config.Wanted(), names: map[int]string{}, byName: map[string]netlink.Link{},
		state: host.State{
			Links: map[string]host.Link{}, Addresses: map[host.AddressKey]host.Address{},
			Routes: map[host.RouteKey]host.Route{},
			Rules:  map[host.Rule]cluster.Owner{}, Neighbors: map[host.NeighborKey]host.Neighbor{},
			Sysctls: map[string]host.Sysctl{},
		},
	}
	for _, step := range []struct {
		what string
		read func() error
	}{
		{"links", r.links}, {"addresses", r.addresses}, {"neighbours", r.neighbors},
		{"routes", r.routes}, {"rules", r.rules}, {"sysctls", r.sysctls},
	} {
		if err := ctx.Err(); err != nil {
			return host.State{}, err
		}
		if err := step.read(); err != nil {
			return host.State{}, fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return r.state, nil
}

// link returns a link by name, nil if it is missing.
func (r *reading) link(name string) (netlink.Link, error) {
	if l, known := r.byName[name]; known {
		return l, nil
	}
	l, err := r.t.links.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		l, err = nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	r.byName[name] = l
	if l != nil {
		r.names[l.Attrs().Index] = name
	}
	return l, nil
}

// name returns the name of a link, empty if it does not exist any more.
func (r *reading) name(index int) (string, error) {
	if n, known := r.names[index]; known {
		return n, nil
	}
	l, err := r.t.links.LinkByIndex(index)
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}):
		r.names[index] = ""
	case err != nil:
		return "", fmt.Errorf("link %d: %w", index, err)
	default:
		r.names[index] = l.Attrs().Name
	}
	return r.names[index], nil
}

func (r *reading) links() error {
	names := append([]string(nil), r.t.config.Links...)
	for name := range r.want.Links {
		names = append(names, name)
	}
	indexes := map[int]bool{}
	for _, name := range names {
		l, err := r.link(name)
		if err != nil {
			return err
		}
		if l == nil {
			continue
		}
		indexes[l.Attrs().Index] = true
		want, wanted := r.want.Links[name]
		if !wanted || l.Attrs().Flags&net.FlagUp == 0 {
			continue
		}
		found := host.Link{Name: name}
		if want.MAC != (cluster.MAC{}) {
			copy(found.MAC[:], l.Attrs().HardwareAddr)
		}
		if want.MTU != 0 {
			found.MTU = l.Attrs().MTU
		}
		if want.Checksums {
			if found.Checksums, err = r.t.checksums(name); err != nil {
				return err
			}
		}
		r.state.Links[name] = found
	}
	r.t.indexes.Store(&indexes)
	return nil
}

func (r *reading) addresses() error {
	list, err := r.t.listAddresses()
	if err != nil {
		return err
	}
	for _, f := range list {
		if kernelMade(f.prefix.Addr()) {
			continue
		}
		name, err := r.name(f.link)
		if err != nil {
			return err
		}
		k := host.AddressKey{Link: name, Prefix: f.prefix}
		if name != "" && (f.ours || r.t.config.ours(name, f.prefix.Addr())) {
			r.state.Addresses[k] = host.Address{AddressKey: k, Deprecated: f.deprecated}
		}
	}
	return nil
}

func (t *Target) listAddresses() ([]foundAddress, error) {
	raw, err := t.dump(unix.RTM_GETADDR, nl.NewIfAddrmsg(unix.AF_UNSPEC))
	return parseAll(raw, err, parseAddress)
}

func (r *reading) neighbors() error {
	list, err := r.t.listNeighbors()
	if err != nil {
		return err
	}
	for _, f := range list {
		if !f.permanent || kernelMade(f.ip) {
			continue
		}
		name, err := r.name(f.link)
		if err != nil {
			return err
		}
		if name != "" && r.t.config.ours(name, f.ip) {
			k := host.NeighborKey{Link: name, IP: f.ip}
			r.state.Neighbors[k] = host.Neighbor{NeighborKey: k, MAC: f.mac}
		}
	}
	return nil
}

// listNeighbors lists neighbours of both families, without bridges' forwarding entries.
func (t *Target) listNeighbors() ([]foundNeighbor, error) {
	var out []foundNeighbor
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		raw, err := t.dump(unix.RTM_GETNEIGH, &netlink.Ndmsg{Family: family})
		list, err := parseAll(raw, err, parseNeighbor)
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
	}
	return out, nil
}

func (r *reading) routes() error {
	list, err := r.t.listRoutes()
	if err != nil {
		return err
	}
	for _, f := range list {
		if err := r.route(f); err != nil {
			return err
		}
	}
	return nil
}

// route records a route. One that package host cannot represent, and one of two with the same key,
// is recorded without a link, so that it differs from every wanted route.
func (r *reading) route(f foundRoute) error {
	out := host.Route{RouteKey: f.key}
	if _, duplicate := r.state.Routes[f.key]; f.plain && !duplicate {
		name, err := r.name(f.link)
		if err != nil {
			return err
		}
		out.Link, out.Via, out.Src, out.MTU, out.AdvMSS = name, f.via, f.src, f.mtu, f.mss
	}
	r.state.Routes[f.key] = out
	return nil
}

// listRoutes lists the routes with Hairpin's protocol in all tables.
func (t *Target) listRoutes() ([]foundRoute, error) {
	var out []foundRoute
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		head := &nl.RtMsg{RtMsg: unix.RtMsg{Family: family, Protocol: claims.RouteProtocol}}
		raw, err := t.dump(unix.RTM_GETROUTE, head)
		list, err := parseAll(raw, err, parseRoute)
		if err != nil {
			return nil, err
		}
		for _, f := range list {
			if f.protocol == claims.RouteProtocol {
				out = append(out, f)
			}
		}
	}
	return out, nil
}

func (r *reading) rules() error {
	list, err := r.t.listRules()
	if err != nil {
		return err
	}
	for _, f := range list {
		r.state.Rules[f.rule] = cluster.Owner{}
	}
	return nil
}

// listRules lists the rules with Hairpin's priorities.
func (t *Target) listRules() ([]foundRule, error) {
	var out []foundRule
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		raw, err := t.dump(unix.RTM_GETRULE, &nl.RtMsg{RtMsg: unix.RtMsg{Family: family}})
		list, err := parseAll(raw, err, parseRule)
		if err != nil {
			return nil, err
		}
		for _, f := range list {
			if f.inRange() {
				out = append(out, f)
			}
		}
	}
	return out, nil
}

func (r *reading) sysctls() error {
	return inside.Do(r.t.config.NetNS, func() error {
		paths := formerFile(r.t.config.Former).load()
		for path := range r.want.Sysctls {
			paths[path] = ""
		}
		var removed []string // of removed links
		for path := range paths {
			b, err := os.ReadFile(sysctlFile(path))
			if errors.Is(err, os.ErrNotExist) {
				removed = append(removed, path)
				continue
			}
			if err != nil {
				return err
			}
			r.state.Sysctls[path] = host.Sysctl{Path: path, Value: strings.Join(strings.Fields(string(b)), " ")}
		}
		return formerFile(r.t.config.Former).forget(removed)
	})
}

// parseAll parses all messages of a listing.
func parseAll[F any](raw [][]byte, err error, parse func([]byte) (F, error)) ([]F, error) {
	if err != nil {
		return nil, err
	}
	out := make([]F, 0, len(raw))
	for _, b := range raw {
		f, err := parse(b)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

func familyOf(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
