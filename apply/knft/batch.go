package knft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nft"
	"hairpin/delta"
)

// batch is one transaction of nf_tables that changes only elements (linux/netfilter/nf_tables.h).
// Elements are encoded as nft does it, with one exception. nft adds an element before the first
// range of an empty set; the kernel does not need it.
type batch struct {
	bytes    []byte
	requests []request
}

// request is one message of a batch about elements of one map or set, for error messages.
type request struct {
	words    string // "add element inet hairpin nodeports4"
	begin    int    // in the batch
	key      []nft.KeyField
	elements []element
	at       []int // offset of each element in the message
}

// group is a map or set.
type group struct {
	family nft.Family
	name   string
	key    []nft.KeyField
	ranges bool
}

// element is an element to add, or to delete by its key.
type element struct {
	nft.Element
	data  []byte // of a map
	owner cluster.Owner
}

// portion is the number of elements per message: their list is limited to 64 KiB, and the longest
// element takes 300 bytes.
const portion = 200

// Constants that golang.org/x/sys/unix lacks.
const (
	keyEnd      = 10 // NFTA_SET_ELEM_KEY_END
	userComment = 0  // NFTNL_UDATA_SET_ELEM_COMMENT, of libnftnl
	userFlags   = 1  // NFTNL_UDATA_SET_ELEM_FLAGS
	openRange   = 1  // nft's flag of a range that includes the last address of all: no address after it can end it
)

// newBatch encodes a Delta with only elements, which must not be empty.
func newBatch(d nft.Delta) *batch {
	b := &batch{}
	b.message(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.NFPROTO_UNSPEC)()
	for _, f := range delta.Keys(d.Tables) {
		t := d.Tables[f]
		for _, name := range delta.Keys(t.MapElements) {
			m := t.Want.Maps[name]
			change(b, group{f, name, m.Key, false}, t.MapElements[name],
				func(e nft.Element, to nft.Target) element { return element{e, data(m, to), to.Owner} })
		}
		for _, name := range delta.Keys(t.SetElements) {
			s := t.Want.Sets[name]
			change(b, group{f, name, s.Key, s.HasRanges()}, t.SetElements[name],
				func(e nft.Element, o cluster.Owner) element { return element{e, nil, o} })
		}
	}
	// Without errors, only the last message is acknowledged; then the whole transaction succeeded.
	last := b.bytes[b.requests[len(b.requests)-1].begin:]
	binary.NativeEndian.PutUint16(last[6:], binary.NativeEndian.Uint16(last[6:])|unix.NLM_F_ACK)
	b.message(unix.NFNL_MSG_BATCH_END, 0, unix.NFPROTO_UNSPEC)()
	return b
}

// change deletes removed and changed elements, then adds new and changed ones.
func change[V any](b *batch, g group, d delta.Delta[nft.Element, V], valued func(nft.Element, V) element) {
	var gone, added []element
	for e := range d.Delete {
		gone = append(gone, element{Element: e})
	}
	for e, v := range d.Change {
		gone, added = append(gone, element{Element: e}), append(added, valued(e, v))
	}
	for e, v := range d.Add {
		added = append(added, valued(e, v))
	}
	b.elements("delete", unix.NFT_MSG_DELSETELEM, 0, g, gone)
	b.elements("add", unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, g, added)
}

func (b *batch) elements(verb string, typ, flags uint16, g group, elements []element) {
	slices.SortFunc(elements, func(x, y element) int { return x.Compare(y.Element) })
	for part := range slices.Chunk(elements, portion) {
		words := fmt.Sprintf("%s element %s %s %s", verb, g.family, claims.NFTTable, g.name)
		b.requests = append(b.requests, request{words: words, begin: len(b.bytes), key: g.key, elements: part})
		r := &b.requests[len(b.requests)-1]
		end := b.message(unix.NFNL_SUBSYS_NFTABLES<<8|typ, flags, protocol(g.family))
		b.attribute(unix.NFTA_SET_ELEM_LIST_TABLE, nl.ZeroTerminated(claims.NFTTable))
		b.attribute(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated(g.name))
		endList := b.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for _, e := range part {
			r.at = append(r.at, len(b.bytes)-r.begin)
			b.element(g, e)
		}
		endList()
		end()
	}
}

// element encodes an element. With several key fields, a range is one element with its first and
// last key. With a single field, it is two elements: the first address, and the address after the
// range.
func (b *batch) element(g group, e element) {
	first, last := e.Src.Addr(), netip.Addr{}
	if g.ranges {
		r := cluster.RangeOf(e.Src)
		first, last = r.First, r.Last
	}
	after, single := last.Next(), len(g.key) == 1
	var user []byte
	if comment := nft.Comment(e.owner); comment != "" {
		user = append(append(user, userComment, byte(len(comment)+1)), nl.ZeroTerminated(comment)...)
	}
	if g.ranges && single && !after.IsValid() {
		user = binary.NativeEndian.AppendUint32(append(user, userFlags, 4), openRange)
	}
	end := b.nest(unix.NFTA_LIST_ELEM)
	b.value(unix.NFTA_SET_ELEM_KEY, fields(g.key, e.Element, first))
	if g.ranges && !single {
		b.value(keyEnd, fields(g.key, e.Element, last))
	}
	if e.data != nil {
		b.value(unix.NFTA_SET_ELEM_DATA, e.data)
	}
	if user != nil {
		b.attribute(unix.NFTA_SET_ELEM_USERDATA, user)
	}
	end()
	if g.ranges && single && after.IsValid() {
		end := b.nest(unix.NFTA_LIST_ELEM)
		b.attribute(unix.NFTA_SET_ELEM_FLAGS, binary.BigEndian.AppendUint32(nil, unix.NFT_SET_ELEM_INTERVAL_END))
		b.value(unix.NFTA_SET_ELEM_KEY, fields(g.key, e.Element, after))
		end()
	}
}

// fields encodes a key, with src as its source. With several fields, each is padded to a multiple
// of four bytes.
func fields(key []nft.KeyField, e nft.Element, src netip.Addr) []byte {
	var out []byte
	for _, k := range key {
		switch k {
		case nft.KeyProto:
			out = append(out, byte(e.Protocol))
		case nft.KeyPort:
			out = binary.BigEndian.AppendUint16(out, e.Port)
		case nft.KeyPortSlot:
			out = binary.BigEndian.AppendUint16(out, uint16(e.Slot)<<1)
		case nft.KeyIPSlot:
			out = append(out, 0, 0, 0, e.Slot)
		case nft.KeyIP6Slot:
			out = append(append(out, make([]byte, 15)...), e.Slot)
		case nft.KeyIPSrc, nft.KeyIP6Src:
			out = append(out, src.AsSlice()...)
		case nft.KeyOut:
			var name [unix.IFNAMSIZ]byte
			copy(name[:], e.Out)
			out = append(out, name[:]...)
		default:
			out = append(out, e.Addr.AsSlice()...)
		}
		if len(key) > 1 {
			out = pad(out)
		}
	}
	return out
}

// data encodes the value of a map's element.
func data(m *nft.Map, to nft.Target) []byte {
	out := to.Addr.Addr().AsSlice()
	if !m.AddressOnly() {
		out = pad(binary.BigEndian.AppendUint16(out, to.Addr.Port()))
	}
	return out
}

func protocol(f nft.Family) byte {
	return map[nft.Family]byte{nft.Inet: unix.NFPROTO_INET, nft.Netdev: unix.NFPROTO_NETDEV, nft.IP: unix.NFPROTO_IPV4,
		nft.IP6: unix.NFPROTO_IPV6}[f]
}

// message begins a message and returns the function that ends it. The sequence number of a request
// is its position in requests, from 1.
func (b *batch) message(typ, flags uint16, family byte) (end func()) {
	begin := len(b.bytes)
	b.bytes = append(b.bytes, 0, 0, 0, 0)
	b.bytes = binary.NativeEndian.AppendUint16(b.bytes, typ)
	b.bytes = binary.NativeEndian.AppendUint16(b.bytes, flags|unix.NLM_F_REQUEST)
	b.bytes = binary.NativeEndian.AppendUint32(b.bytes, uint32(len(b.requests)))
	b.bytes = append(b.bytes, 0, 0, 0, 0, family, nl.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES)
	return func() { binary.NativeEndian.PutUint32(b.bytes[begin:], uint32(len(b.bytes)-begin)) }
}

// nest begins a nested attribute and returns the function that ends it.
func (b *batch) nest(typ uint16) (end func()) {
	begin := len(b.bytes)
	b.bytes = binary.NativeEndian.AppendUint16(append(b.bytes, 0, 0), typ|unix.NLA_F_NESTED)
	return func() { binary.NativeEndian.PutUint16(b.bytes[begin:], uint16(len(b.bytes)-begin)) }
}

func (b *batch) attribute(typ uint16, value []byte) {
	b.bytes = binary.NativeEndian.AppendUint16(b.bytes, uint16(unix.SizeofNlAttr+len(value)))
	b.bytes = pad(append(binary.NativeEndian.AppendUint16(b.bytes, typ), value...))
}

// value encodes a key or a value of a map.
func (b *batch) value(typ uint16, data []byte) {
	end := b.nest(typ)
	b.attribute(unix.NFTA_DATA_VALUE, data)
	end()
}

// pad pads to a multiple of four bytes, the alignment of attributes and key fields.
func pad(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}
