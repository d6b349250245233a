package flow

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hairpin/cluster"
	"hairpin/openflow"
)

// Group is an OpenFlow group of type select: a packet that a flow gives to it takes one of the
// buckets. A group that changes is sent as a whole: after insert-buckets and remove-buckets Open
// vSwitch 3.5.0 gives all packets to one bucket, or to none. Groups are immutable.
type Group struct {
	GroupKey
	// Hashed is the protocol of packets of which Open vSwitch chooses the bucket itself, by a hash
	// of their source and its port: each connection that comes to the group asks it. Otherwise the
	// datapath chooses, by a hash of the connection (dp_hash).
	Hashed  Protocol
	Buckets []Bucket      // by ID
	Owner   cluster.Owner // not known of a group read back
}

// GroupKey identifies a group.
type GroupKey struct {
	Bridge string // one of State.Bridges: on another's there is none of ours
	ID     uint32
}

// Bucket is one way on: conntrack translates the connection, or a table goes on with what was
// chosen.
type Bucket struct {
	ID   uint32
	CT   CT
	Next uint8 // notes ID as the packet's Bucket and goes on to this table; there is no CT then
}

// MaxBuckets have room in one message of 64 kB, whatever they say. More could be sent in several
// messages (insert-buckets), but a description of a group, by which it is read back, has a 16-bit
// length as well. A group with more would take its whole bundle with it.
const MaxBuckets = 640

// maxGroup is the last id that OpenFlow gives to groups and to buckets; those above are reserved
// (OFPG_MAX, OFPG15_BUCKET_MAX).
const maxGroup = 0xffffff00

// Equal reports whether two groups do the same. The owner does not count: the switch does not know
// it.
func (g *Group) Equal(h *Group) bool {
	return g == h || g.GroupKey == h.GroupKey && g.Hashed == h.Hashed && slices.Equal(g.Buckets, h.Buckets)
}

// Check tells why Open vSwitch would refuse a group, or keep it otherwise than it is written. nil
// is a group that is fine.
func (g *Group) Check() error {
	if n := len(g.Buckets); n == 0 || n > MaxBuckets {
		return fmt.Errorf("group %d has %d buckets, not 1 to %d", g.ID, n, MaxBuckets)
	}
	if g.ID > maxGroup {
		return fmt.Errorf("group %d: the id is reserved", g.ID)
	}
	protocol := IP
	if g.Buckets[0].CT.NAT.Addr.Is6() {
		protocol = IPv6
	}
	for i, b := range g.Buckets {
		err := b.CT.check(protocol)
		switch {
		case b.Next != 0 && (b.ID == 0 || b.CT != CT{}):
			return fmt.Errorf("group %d: bucket %d has nothing to note, or more to do", g.ID, b.ID)
		case b.Next == 0 && err != nil:
			return fmt.Errorf("group %d: bucket %d: %w", g.ID, b.ID, err)
		case b.ID > maxGroup:
			return fmt.Errorf("group %d: bucket %d: the id is reserved", g.ID, b.ID)
		case i > 0 && b.ID <= g.Buckets[i-1].ID:
			return fmt.Errorf("group %d: bucket %d comes after %d", g.ID, b.ID, g.Buckets[i-1].ID)
		}
	}
	return nil
}

// How a group of ours begins, after its id, and each of its buckets.
const (
	groupWords  = ",type=select,selection_method="
	bucketWords = ",bucket=bucket_id:"
)

// hashed are the fields of which Open vSwitch hashes the values to choose a bucket; none: the
// datapath chooses.
func (p Protocol) hashed() (list []*form) {
	if p == Any {
		return nil
	}
	for _, name := range []string{"nw_src", "tp_src"} {
		list = append(list, byName[name].field.form(&Match{Protocol: p}, datum{}))
	}
	return list
}

// method is how a group chooses a bucket, in ovs-ofctl's words.
func (p Protocol) method() string {
	var names []string
	for _, x := range p.hashed() {
		names = append(names, cmp.Or(x.alias, x.name))
	}
	if names == nil {
		return "dp_hash"
	}
	return "hash,fields(" + strings.Join(names, ",") + ")"
}

// String returns the group in ovs-ofctl's words, without the owner.
func (g *Group) String() string { return string(g.append(nil)) }

func (g *Group) append(b []byte) []byte {
	b = append(strconv.AppendUint(append(b, "group_id="...), uint64(g.ID), 10), groupWords...)
	b = append(b, g.Hashed.method()...)
	for _, x := range g.Buckets {
		b = strconv.AppendUint(append(b, bucketWords...), uint64(x.ID), 10)
		b = append(b, ",actions="...)
		if x.Next == 0 {
			b = x.CT.append(b)
			continue
		}
		b = append(x.chosen().append(b), ',')
		b = appendAction(b, Resubmit{x.Next})
	}
	return b
}

// ParseGroup reads one group: what Print writes, and what `ovs-ofctl dump-groups` prints. An error
// is, or wraps, a *WordError. The group comes back all the same, without buckets, when its id could
// be read, so that the caller knows which one to replace.
func ParseGroup(line string) (*Group, error) {
	rest, owner := cutOwner(strings.TrimSpace(line))
	id, rest, _ := strings.Cut(rest, ",")
	name, value, _ := strings.Cut(id, "=")
	g := &Group{Owner: owner}
	if name != "group_id" {
		return nil, wordError(id, "is not the id of a group")
	}
	if err := number(&g.ID, id, value, 32); err != nil {
		return nil, err
	}
	buckets, ok := strings.CutPrefix(","+rest, groupWords)
	if !ok {
		return g, wordError(rest, "is not how a group of ours begins")
	}
	words := strings.Split(buckets, bucketWords)
	for _, text := range words[1:] {
		b, err := parseBucket(text)
		if err != nil {
			return &Group{GroupKey: g.GroupKey, Owner: owner}, err
		}
		g.Buckets = append(g.Buckets, b)
	}
	for _, p := range []Protocol{Any, TCP, TCP6, UDP, UDP6, SCTP, SCTP6} {
		if p.method() == words[0] {
			g.Hashed = p
			return g, nil
		}
	}
	return &Group{GroupKey: g.GroupKey, Owner: owner}, wordError(words[0], "is not how a group of ours chooses")
}

// chosen notes the bucket as that of the packet.
func (b Bucket) chosen() setting { return setting{openflow.Reg7, exactly(uint64(b.ID))} }

func parseBucket(text string) (b Bucket, err error) {
	id, actions, _ := strings.Cut(text, ",actions=")
	if err := number(&b.ID, id, id, 32); err != nil {
		return b, err
	}
	inside, ok := between(actions, "ct(", ")")
	if !ok {
		table, ok := between(actions, "set_field:0x"+strconv.FormatUint(uint64(b.ID), 16)+"->reg7,resubmit(,", ")")
		if !ok {
			return b, wordError(actions, "is not what a bucket of ours does")
		}
		return b, nonzero(&b.Next, actions, table, 8)
	}
	a, err := parseCT(inside)
	b.CT, _ = a.(CT)
	return b, err
}
