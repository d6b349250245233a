package redirect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/redirect"
)

// maxServices is the maximum number of addresses and ports. The kernel's empty hash table for them
// takes 2 MB.
const maxServices = 1 << 17

// Values of claims.MapServices: the index of the Service's element of claims.MapTarget.
const (
	toRouter  = iota // as it is
	toTracked        // the gateway bridge tracks the connection
	targets
)

// A value of claims.MapTarget: a link's index, the frame's destination and source MACs, the MTU.
const (
	targetLink = 0
	targetMACs = 4
	targetMTU  = targetMACs + macs
	targetSize = targetMTU + 4
)

// mapSpecs returns the maps of both programs.
func mapSpecs() map[string]*ebpf.MapSpec {
	list := map[string]*ebpf.MapSpec{
		claims.MapServices: {Type: ebpf.Hash, KeySize: keySize, ValueSize: 4, MaxEntries: maxServices,
			Flags: unix.BPF_F_NO_PREALLOC},
		claims.MapTarget:   {Type: ebpf.Array, KeySize: 4, ValueSize: targetSize, MaxEntries: targets},
		claims.MapCounters: {Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: counters},
	}
	for name, m := range list {
		m.Name = name
	}
	return list
}

// mapSet holds the programs' shared maps, by name.
type mapSet map[string]*ebpf.Map

// shared opens the maps of the attached programs. If they use different maps, which is unintended,
// it opens the oldest. It ignores maps of another version.
func shared(found []attached) (mapSet, error) {
	ids := map[string]ebpf.MapID{}
	for _, a := range found {
		if a.maps[claims.MapServices] == oldest(found) {
			maps.Copy(ids, a.maps)
		}
	}
	set, specs := mapSet{}, mapSpecs()
	for name, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			set.close()
			return nil, fmt.Errorf("map %s: %w", name, err)
		}
		if spec := specs[name]; spec == nil || spec.Compatible(m) != nil {
			_ = m.Close()
			continue
		}
		set[name] = m
	}
	return set, nil
}

func (s mapSet) close() {
	for _, m := range s {
		_ = m.Close()
	}
}

// oldest returns the oldest claims.MapServices of the programs, the one in use.
func oldest(found []attached) ebpf.MapID {
	id := found[0].maps[claims.MapServices]
	for _, a := range found {
		id = min(id, a.maps[claims.MapServices])
	}
	return id
}

// add adds or changes elements of claims.MapServices; remove removes some.
func (s mapSet) add(list map[redirect.Service]redirect.Path) error {
	if len(list) > 0 && s[claims.MapServices] == nil {
		return fmt.Errorf("map %s: no program has it", claims.MapServices)
	}
	for k, w := range list {
		if err := s[claims.MapServices].Put(keyOf(k), valueOf(w)); err != nil {
			return fmt.Errorf("map %s: %s: %w", claims.MapServices, k, err)
		}
	}
	return nil
}

func (s mapSet) remove(list map[redirect.Service]redirect.Path) error {
	if s[claims.MapServices] == nil {
		return nil
	}
	for k := range list {
		if err := s[claims.MapServices].Delete(keyOf(k)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("map %s: %s: %w", claims.MapServices, k, err)
		}
	}
	return nil
}

// serviceKey is a key of claims.MapServices.
type serviceKey [keySize]byte

func keyOf(s redirect.Service) (k serviceKey) {
	a := s.Addr.Addr().As16()
	copy(k[:], a[:])
	binary.BigEndian.PutUint16(k[onPort-onKey:], s.Addr.Port())
	k[onProto-onKey], k[onFamily-onKey] = byte(s.Protocol), family4
	if s.Addr.Addr().Is6() {
		k[onFamily-onKey] = family6
	}
	return k
}

func (k serviceKey) service() redirect.Service {
	a := netip.AddrFrom16([16]byte(k[:16]))
	if k[onFamily-onKey] == family4 {
		a = a.Unmap()
	}
	return redirect.Service{Addr: netip.AddrPortFrom(a, binary.BigEndian.Uint16(k[onPort-onKey:])),
		Protocol: cluster.Protocol(k[onProto-onKey])}
}

func valueOf(w redirect.Path) uint32 {
	if w.Tracked {
		return toTracked
	}
	return toRouter
}

// target is the content of claims.MapTarget, except for the source MAC.
type target struct {
	index int // of the link that requests go to; 0 = none
	mac   cluster.MAC
	mtu   int
}

// senders returns the source MACs, by values of claims.MapServices.
func senders() [targets]cluster.MAC {
	return [targets]cluster.MAC{toRouter: macOf(claims.MasqMAC), toTracked: macOf(claims.RedirectMAC)}
}

// macOf parses a valid MAC.
func macOf(text string) cluster.MAC {
	mac, _ := cluster.ParseMAC(text)
	return mac
}

func (t target) bytes(sender cluster.MAC) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(t.index))
	return binary.NativeEndian.AppendUint32(append(append(b, t.mac[:]...), sender[:]...), uint32(t.mtu))
}

func (t target) put(m *ebpf.Map) error {
	for i, sender := range senders() {
		if err := m.Put(uint32(i), t.bytes(sender)); err != nil {
			return fmt.Errorf("map %s: %w", claims.MapTarget, err)
		}
	}
	return nil
}

// readTarget returns the target that put wrote; for other content, the zero target.
func readTarget(m *ebpf.Map) (t target, err error) {
	for i, sender := range senders() {
		b, err := m.LookupBytes(uint32(i))
		if err != nil || len(b) != targetSize {
			return target{}, fmt.Errorf("map %s: %w", claims.MapTarget, err)
		}
		if i == 0 {
			t = target{index: int(binary.NativeEndian.Uint32(b)), mac: cluster.MAC(b[targetMACs : targetMACs+6]),
				mtu: int(binary.NativeEndian.Uint32(b[targetMTU:]))}
		}
		if !bytes.Equal(b, t.bytes(sender)) {
			return target{}, nil
		}
	}
	return t, nil
}

// readServices lists the Services that the programs redirect.
func readServices(m *ebpf.Map) (map[redirect.Service]redirect.Path, error) {
	list := map[redirect.Service]redirect.Path{}
	var key serviceKey
	var value uint32
	it := m.Iterate()
	for it.Next(&key, &value) {
		list[key.service()] = redirect.Path{Tracked: value == toTracked}
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("map %s: %w", claims.MapServices, err)
	}
	return list, nil
}

// sum returns a counter's sum over all CPUs.
func sum(m *ebpf.Map, counter uint32) (n uint64, err error) {
	var each []uint64
	if err := m.Lookup(counter, &each); err != nil {
		return 0, fmt.Errorf("map %s: %w", claims.MapCounters, err)
	}
	for _, v := range each {
		n += v
	}
	return n, nil
}
