package cni

import (
	"fmt"
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
	last     map[cluster.Family]netip.Addr
}

// entry is an attachment. While the row does not change what plan must know, pod stays the same pointer: plan compares
// by it.
type entry struct {
	row *ovsdb.Interface // nil when promised
	attachment
	as *cluster.Pod
}

func newBook(node string) *book {
	return &book{node: node, rows: map[string]entry{}, promised: map[string]entry{}, last: map[cluster.Family]netip.Addr{}}
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
		e := entry{row, a, a.toPod(b.node)}
		if old.as != nil && reflect.DeepEqual(e.as, old.as) {
			e.as = old.as
		}
		now[row.Name] = e
	}
	b.rows = now
}

// attachments lists those that have a row, by host name.
func (b *book) attachments(v ovsdb.View) []entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look(v)
	list := make([]entry, 0, len(b.rows))
	for _, e := range b.rows {
		list = append(list, e)
	}
	slices.SortFunc(list, func(x, y entry) int { return strings.Compare(x.host, y.host) })
	return list
}

// pods lists the pods that have a row or a promise. Of a pod that has both, the promise counts.
func (b *book) pods(v ovsdb.View) []*cluster.Pod {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look(v)
	byOwner := make(map[cluster.Owner]*cluster.Pod, len(b.rows)+len(b.promised))
	for _, m := range []map[string]entry{b.rows, b.promised} {
		for _, e := range m {
			if len(e.addresses) > 0 {
				byOwner[e.pod] = e.as
			}
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
	for _, m := range []map[string]entry{b.rows, b.promised} {
		for _, e := range m {
			for _, p := range e.addresses {
				used[p.Addr()] = true
			}
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
