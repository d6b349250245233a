package flow

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/flow/oxm"
	"hairpin/openflow"
)

// Group is an OpenFlow group of type select: each packet takes one of its buckets. A group that
// changes is sent as a whole: after insert-buckets and remove-buckets, Open vSwitch 3.5.0 sends all
// packets to one bucket, or to none. Groups are immutable.
type Group struct {
	GroupKey
	// Hashed is the protocol for which Open vSwitch itself chooses the bucket, by a hash of source
	// address and port: each connection causes an upcall. If it is Any, the datapath chooses by a
	// hash of the connection (dp_hash).
	Hashed  Protocol
	Buckets []Bucket      // by ID
	Owner   cluster.Owner // unknown for a group that was read back
}

// GroupKey identifies a group.
type GroupKey struct {
	Bridge string // one that only Hairpin uses: other bridges have no groups of ours
	ID     uint32
}

// Bucket is a bucket of a group. Either CT translates the connection, or, if Next is not 0, the
// packet continues in table Next, where Match.Bucket matches the ID.
type Bucket struct {
	ID   uint32
	CT   CT
	Next uint8 // sets the packet's Bucket to ID and resubmits to this table; CT is zero then
}

// MaxBuckets fit into one message of 64 kB, whatever their content. insert-buckets could send more
// in several messages, but the group description that is read back also has a 16-bit length. A
// larger group would make its whole bundle fail.
const MaxBuckets = 640

// maxGroup is the highest OpenFlow id of groups and of buckets; higher ids are reserved (OFPG_MAX,
// OFPG15_BUCKET_MAX).
const maxGroup = 0xffffff00

// Equal reports whether two groups have the same content. It ignores the owner, which the switch
// does not store.
func (g *Group) Equal(h *Group) bool {
	return g == h || g.GroupKey == h.GroupKey && g.Hashed == h.Hashed && slices.Equal(g.Buckets, h.Buckets)
}

// Check returns why Open vSwitch would refuse a group, or store it in another form. It returns nil
// for a valid group.
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
			return fmt.Errorf("group %d: bucket %d has a next table, but no id, or a ct as well", g.ID, b.ID)
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

// Text of a group after its id, and of a bucket before its id.
const (
	afterGroupID   = ",type=select,selection_method="
	beforeBucketID = ",bucket=bucket_id:"
)

// hashable lists what Group.Hashed may be. It is read-only.
var hashable = []Protocol{Any, TCP, TCP6, UDP, UDP6, SCTP, SCTP6}

// hashed returns the fields that Open vSwitch hashes to choose a bucket; none: the datapath
// chooses.
func (p Protocol) hashed() (list []openflow.Field) {
	if p == Any {
		return nil
	}
	for _, name := range []string{"nw_src", "tp_src"} {
		x := byName[name].field.form(&Match{Protocol: p}, oxm.Value{}) // of this protocol
		list = append(list, x.oxm)
	}
	return list
}

// method returns the selection method of a group, in ovs-ofctl's syntax.
func (p Protocol) method() string {
	var names []string
	for _, x := range p.hashed() {
		names = append(names, byOXM[x][0].settingName())
	}
	if names == nil {
		return "dp_hash"
	}
	return "hash,fields(" + strings.Join(names, ",") + ")"
}

// String returns the group in ovs-ofctl's syntax, without the owner.
func (g *Group) String() string { return string(g.Append(nil)) }

// Append appends the text that String returns.
func (g *Group) Append(b []byte) []byte {
	b = append(strconv.AppendUint(append(b, "group_id="...), uint64(g.ID), 10), afterGroupID...)
	b = append(b, g.Hashed.method()...)
	for _, x := range g.Buckets {
		b = strconv.AppendUint(append(b, beforeBucketID...), uint64(x.ID), 10)
		b = append(b, ",actions="...)
		if x.Next == 0 {
			b = x.CT.append(b)
			continue
		}
		b = append(x.setBucket().append(b), ',')
		b = appendAction(b, Resubmit{x.Next})
	}
	return b
}

// setBucket returns the setting that makes b the packet's Bucket.
func (b Bucket) setBucket() setting {
	return setting{byOXM[openflow.Reg7][0], oxm.Exactly(uint64(b.ID))}
}
