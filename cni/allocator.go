package cni

import (
	"errors"
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
	"hairpin/cni/veth"
	"hairpin/ovsdb"
)

// allocator allocates the node's pod addresses. It knows the addresses in Interface rows, and those
// reserved for attachments without a row yet.
type allocator struct {
	node string

	mu       sync.Mutex
	rows     map[string]entry              // by host name; as of the last refresh
	reserved map[string]entry              // by host name
	lost     map[string]entry              // by host name; their rows were removed without a DEL
	deleting map[string]bool               // by host name; their rows are being removed
	last     map[cluster.Family]netip.Addr // allocated most recently
}

// entry is an attachment. fact is what plan reads of it. Its pointer changes only if its value
// does: plan compares pods by pointer.
type entry struct {
	row *ovsdb.Interface // nil when reserved or lost
	attachment
	fact *cluster.Pod
}

func newAllocator(node string) *allocator {
	return &allocator{
		node: node, rows: map[string]entry{}, reserved: map[string]entry{}, lost: map[string]entry{},
		deleting: map[string]bool{},
		last:     map[cluster.Family]netip.Addr{},
	}
}

// refresh reads the Interface rows. The caller holds mu.
func (b *allocator) refresh(v ovsdb.View) {
	now := make(map[string]entry, len(b.rows))
	for row := range ovsdb.Rows[ovsdb.Interface](v) {
		old, known := b.rows[row.Name]
		if known && old.row == row {
			now[row.Name] = old
			continue
		}
		if !veth.IsHostName(row.Name) {
			continue
		}
		a := parseAttachment(row)
		// The fact stays the same from the reservation to the row, and when a lost row is restored.
		if !known {
			old = b.reserved[row.Name]
		}
		if lost, ok := b.lost[row.Name]; ok {
			old = lost
		}
		e := entry{row, a, a.toPod(b.node)}
		if old.fact != nil && reflect.DeepEqual(e.fact, old.fact) {
			e.fact = old.fact
		}
		now[row.Name] = e
	}
	for host, e := range b.rows {
		if _, exists := now[host]; !exists && !b.deleting[host] && len(e.Addresses) > 0 {
			e.row = nil
			b.lost[host] = e
		}
	}
	maps.DeleteFunc(b.lost, func(host string, _ entry) bool { _, exists := now[host]; return exists })
	maps.DeleteFunc(b.deleting, func(host string, _ bool) bool { _, exists := now[host]; return !exists })
	b.rows = now
}

// markDeleting records that the attachment is being removed.
func (b *allocator) markDeleting(host string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deleting[host] = true
	delete(b.lost, host)
}

// isAttached reports whether an attachment has a row or a reservation, and is not being removed.
func (b *allocator) isAttached(view func() ovsdb.View, host string) bool {
	known := b.isKnown(view, host)
	b.mu.Lock()
	defer b.mu.Unlock()
	return known && !b.deleting[host]
}

// lostRows lists the attachments that have lost their rows.
func (b *allocator) lostRows(v ovsdb.View) []entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh(v)
	return slices.Collect(maps.Values(b.lost))
}

// addLost adds an attachment that is recorded on a link and has no row to the lost ones. It returns
// false if the pod, or one of its addresses, has another attachment now.
func (b *allocator) addLost(v ovsdb.View, a *attachment) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh(v)
	for e := range b.all() {
		shares := slices.ContainsFunc(e.Addresses, func(p netip.Prefix) bool { return slices.Contains(a.Addresses, p) })
		if e.Host != a.Host && (e.pod == a.pod || shares) {
			return false
		}
	}
	if _, known := b.lost[a.Host]; !known {
		b.lost[a.Host] = entry{attachment: *a, fact: a.toPod(b.node)}
	}
	return true
}

// all iterates over all attachments: first those that have lost their row, then those with a row,
// then the reserved ones. The caller holds mu.
func (b *allocator) all() iter.Seq[entry] {
	return func(yield func(entry) bool) {
		for _, m := range []map[string]entry{b.lost, b.rows, b.reserved} {
			for _, e := range m {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// attachments lists the attachments that have a row, or have lost it, by host name.
func (b *allocator) attachments(v ovsdb.View) []entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh(v)
	list := make([]entry, 0, len(b.rows))
	for _, m := range []map[string]entry{b.lost, b.rows} {
		list = slices.AppendSeq(list, maps.Values(m))
	}
	slices.SortFunc(list, func(x, y entry) int { return strings.Compare(x.Host, y.Host) })
	return list
}

// pods lists the pods that have a row, a lost row, or a reservation. If a pod has a reservation for
// another attachment than that of its row, the reservation counts. A pod that is being deleted is
// not listed: its flows are removed together with its port, not in a second step.
func (b *allocator) pods(v ovsdb.View) []*cluster.Pod {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh(v)
	byOwner := make(map[cluster.Owner]*cluster.Pod, len(b.rows)+len(b.reserved))
	for e := range b.all() {
		_, hasRow := b.rows[e.Host]
		superseded := e.row == nil && hasRow // the reservation of a row that exists now
		if !superseded && len(e.Addresses) > 0 && !b.deleting[e.Host] {
			byOwner[e.pod] = e.fact // reservations come last
		}
	}
	list := make([]*cluster.Pod, 0, len(byOwner))
	for _, p := range byOwner {
		list = append(list, p)
	}
	slices.SortFunc(list, (*cluster.Pod).Compare)
	return list
}

// reserve reserves one address of each subnet for the attachment. They are in use until unreserve,
// or as long as the row exists. A pod that is reported with an address keeps it, as after a reboot.
// Those of other reported pods are avoided while others are free.
func (b *allocator) reserve(v ovsdb.View, a *attachment, subnets []netip.Prefix, reported []*cluster.Pod) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh(v)
	used := map[netip.Addr]bool{}
	for e := range b.all() {
		for _, p := range e.Addresses {
			used[p.Addr()] = true
		}
	}
	own, avoided := map[cluster.Family]netip.Addr{}, maps.Clone(used)
	for _, p := range reported {
		if p.Node != b.node {
			continue
		}
		for _, ip := range p.IPs {
			avoided[ip] = true
			if p.Owner == a.pod && (p.UID == a.uid || p.UID == "" || a.uid == "") {
				own[cluster.FamilyOf(ip)] = ip
			}
		}
	}
	b.loadLast(v)
	a.Addresses = nil
	next := maps.Clone(b.last)
	for _, subnet := range subnets {
		family := cluster.FamilyOf(subnet.Addr())
		if ip := own[family]; usable(subnet, ip) && !used[ip] {
			a.Addresses = append(a.Addresses, netip.PrefixFrom(ip, subnet.Bits()))
			continue
		}
		last := b.last[family]
		ip, err := nextAddress(subnet, last, avoided)
		if errors.Is(err, errFull) {
			ip, err = nextAddress(subnet, last, used)
		}
		if err != nil {
			return fmt.Errorf("Node/%s: spec.podCIDRs: %w", b.node, err)
		}
		a.Addresses = append(a.Addresses, netip.PrefixFrom(ip, subnet.Bits()))
		next[family] = ip
	}
	b.last = next
	a.MAC = cluster.MACFor(a.Addresses[0].Addr())
	b.reserved[a.Host] = entry{attachment: *a, fact: a.toPod(b.node)}
	return nil
}

// loadLast reads the most recently allocated addresses from the integration bridge's row, unless
// they are known already. The caller holds mu.
func (b *allocator) loadLast(v ovsdb.View) {
	if len(b.last) > 0 {
		return
	}
	bridge := ovsdb.BridgeNamed(v, claims.IntegrationBridge)
	if bridge == nil {
		return
	}
	for t := range strings.SplitSeq(bridge.ExternalIDs[keyLast], ",") {
		if ip, err := netip.ParseAddr(t); err == nil {
			b.last[cluster.FamilyOf(ip)] = ip
		}
	}
}

// saveLast returns the operations that write the most recently allocated addresses to the row that
// loadLast reads. Call reserve before.
func (b *allocator) saveLast() []ovsdb.Op {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.last) == 0 {
		return nil
	}
	var last []string
	for _, ip := range slices.SortedFunc(maps.Values(b.last), netip.Addr.Compare) {
		last = append(last, ip.String())
	}
	set := ovsdb.SetKeys("external_ids", map[string]string{keyLast: strings.Join(last, ",")})
	return []ovsdb.Op{ovsdb.Mutate("Bridge", set...).Where("name", "==", claims.IntegrationBridge)}
}

// unreserve ends a reservation, whether it was used or not.
func (b *allocator) unreserve(host string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.reserved, host)
}

// isReserved reports whether an attachment is being made.
func (b *allocator) isReserved(host string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.reserved[host]
	return ok
}

// isKnown reports whether an attachment has a reservation or a row. It calls view after it has read
// the reservations: one that has ended by then has its row in that View.
func (b *allocator) isKnown(view func() ovsdb.View, host string) bool {
	if b.isReserved(host) {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh(view())
	_, ok := b.rows[host]
	return ok
}
