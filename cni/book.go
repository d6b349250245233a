package cni

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/ovsdb"
)

// book tells which pod of the node has which addresses: what the Interface rows say, and what was promised to
// attachments whose rows are not written yet.
type book struct {
	node string

	mu       sync.Mutex
	rows     map[string]entry // by host name; as they were at the last look
	promised map[string]entry // by host name
	lost     map[string]entry // by host name; their rows are gone, and nobody asked for that
	leaving  map[string]bool  // by host name; their rows go because somebody did
	last     map[cluster.Family]netip.Addr
}

// entry is an attachment. While the row does not change what plan must know, pod stays the same pointer: plan compares
// by it.
type entry struct {
	row *ovsdb.Interface // nil when promised or lost
	attachment
	as *cluster.Pod
}

func newBook(node string) *book {
	return &book{
		node: node, rows: map[string]entry{}, promised: map[string]entry{}, lost: map[string]entry{}, leaving: map[string]bool{},
		last: map[cluster.Family]netip.Addr{},
	}
}

// look reads the Interface rows. The caller holds mu.
func (b *book) look(v ovsdb.View) {
	now := make(map[string]entry, len(b.rows))
	for row := range ovsdb.Rows[ovsdb.Interface](v) {
		old, known := b.rows[row.Name]
		if known && old.row == row {
			now[row.Name] = old
			continue
		}
		if !isHostName(row.Name) {
			continue
		}
		a := parseAttachment(row)
		if !known {
			old = b.promised[row.Name]
		}
		if lost, was := b.lost[row.Name]; was {
			old = lost
		}
		e := entry{row, a, a.toPod(b.node)}
		if old.as != nil && reflect.DeepEqual(e.as, old.as) {
			e.as = old.as
		}
		now[row.Name] = e
	}
	for host, e := range b.rows {
		if _, there := now[host]; !there && !b.leaving[host] && len(e.addresses) > 0 {
			e.row = nil
			b.lost[host] = e
		}
	}
	maps.DeleteFunc(b.lost, func(host string, _ entry) bool { _, there := now[host]; return there })
	maps.DeleteFunc(b.leaving, func(host string, _ bool) bool { _, there := now[host]; return !there })
	b.rows = now
}

// leave says that somebody wants the attachment to go.
func (b *book) leave(host string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leaving[host] = true
	delete(b.lost, host)
}

// stays tells whether an attachment has a row that nobody wants to go.
func (b *book) stays(view func() ovsdb.View, host string) bool {
	has := b.has(view, host)
	b.mu.Lock()
	defer b.mu.Unlock()
	return has && !b.leaving[host]
}

// withoutRow lists those whose rows are lost.
func (b *book) withoutRow(v ovsdb.View) []entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look(v)
	return slices.Collect(maps.Values(b.lost))
}

// restore takes up an attachment that is written on a link and has no row. It does not when the pod, or one of its addresses, is
// another's by now.
func (b *book) restore(v ovsdb.View, a *attachment) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look(v)
	for e := range b.all() {
		shares := slices.ContainsFunc(e.addresses, func(p netip.Prefix) bool { return slices.Contains(a.addresses, p) })
		if e.host != a.host && (e.pod == a.pod || shares) {
			return false
		}
	}
	if _, known := b.lost[a.host]; !known {
		b.lost[a.host] = entry{attachment: *a, as: a.toPod(b.node)}
	}
	return true
}

// all goes through everything: what is lost, what has a row, what is promised. The caller holds mu.
func (b *book) all() iter.Seq[entry] {
	return func(yield func(entry) bool) {
		for _, m := range []map[string]entry{b.lost, b.rows, b.promised} {
			for _, e := range m {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// attachments lists those that have a row, or had one that was lost, by host name.
func (b *book) attachments(v ovsdb.View) []entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look(v)
	list := make([]entry, 0, len(b.rows))
	for _, m := range []map[string]entry{b.lost, b.rows} {
		list = slices.AppendSeq(list, maps.Values(m))
	}
	slices.SortFunc(list, func(x, y entry) int { return strings.Compare(x.host, y.host) })
	return list
}

// pods lists the pods that have a row, also one that was lost, or a promise. Of a pod that has more than one, the promise counts.
func (b *book) pods(v ovsdb.View) []*cluster.Pod {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look(v)
	byOwner := make(map[cluster.Owner]*cluster.Pod, len(b.rows)+len(b.promised))
	for e := range b.all() {
		if len(e.addresses) > 0 {
			byOwner[e.pod] = e.as
		}
	}
	list := make([]*cluster.Pod, 0, len(byOwner))
	for _, p := range byOwner {
		list = append(list, p)
	}
	slices.SortFunc(list, func(p, q *cluster.Pod) int { return p.Owner.Compare(q.Owner) })
	return list
}

// promise gives the attachment one address of each subnet. They count as in use until drop, or as long as the row is there.
func (b *book) promise(v ovsdb.View, a *attachment, subnets []netip.Prefix) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look(v)
	used := map[netip.Addr]bool{}
	for e := range b.all() {
		for _, p := range e.addresses {
			used[p.Addr()] = true
		}
	}
	b.remember(v)
	a.addresses = nil
	for _, subnet := range subnets {
		ip, err := nextAddress(subnet, b.last[cluster.FamilyOf(subnet.Addr())], used)
		if err != nil {
			return fmt.Errorf("Node/%s: spec.podCIDRs: %w", b.node, err)
		}
		a.addresses = append(a.addresses, netip.PrefixFrom(ip, subnet.Bits()))
	}
	for _, p := range a.addresses {
		b.last[cluster.FamilyOf(p.Addr())] = p.Addr()
	}
	a.mac = cluster.MACFor(a.addresses[0].Addr())
	b.promised[a.host] = entry{attachment: *a, as: a.toPod(b.node)}
	return nil
}

// remember takes the most recently given addresses from the integration bridge's row, unless they are known already. The
// caller holds mu.
func (b *book) remember(v ovsdb.View) {
	if len(b.last) > 0 {
		return
	}
	for bridge := range ovsdb.Rows[ovsdb.Bridge](v) {
		if bridge.Name != claims.IntegrationBridge {
			continue
		}
		for t := range strings.SplitSeq(bridge.ExternalIDs[keyLast], ",") {
			if ip, err := netip.ParseAddr(t); err == nil {
				b.last[cluster.FamilyOf(ip)] = ip
			}
		}
	}
}

// drop ends a promise: kept, or broken.
func (b *book) drop(host string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.promised, host)
}

// isPromised tells whether an attachment is being made.
func (b *book) isPromised(host string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.promised[host]
	return ok
}

// has tells whether a host's end belongs to an attachment. View is asked for second: a promise is dropped when the row is
// in it.
func (b *book) has(view func() ovsdb.View, host string) bool {
	if b.isPromised(host) {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look(view())
	_, ok := b.rows[host]
	return ok
}
