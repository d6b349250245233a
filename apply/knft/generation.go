package knft

import (
	"encoding/binary"
	"fmt"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/claims"
)

// generations distinguishes Hairpin's transactions from others'. The kernel numbers transactions
// (the "generation") and announces each with its number after its changes. While a transaction of
// Hairpin's runs, numbers are held back; if exactly one transaction happened meanwhile, it was
// Hairpin's. (The announcement's process ID would be simpler, but with nft in a container it is
// from another pid namespace.)
type generations struct {
	touched bool // the announced transaction changes Hairpin's tables; only used by relevant

	mu      sync.Mutex
	running bool
	held    []uint32        // announced while running
	ours    map[uint32]bool // Hairpin's, not announced yet
}

// relevant processes an announcement. It returns true at the end of another program's transaction
// on Hairpin's tables.
func (g *generations) relevant(m syscall.NetlinkMessage) bool {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < nl.SizeofNfgenmsg {
		return false
	}
	attrs, err := nl.ParseRouteAttr(m.Data[nl.SizeofNfgenmsg:])
	if err != nil || len(attrs) == 0 {
		return err != nil
	}
	if m.Header.Type&0xff != unix.NFT_MSG_NEWGEN {
		// In all other messages, attribute 1 is the table's name.
		family := m.Data[0]
		known := family == unix.NFPROTO_INET || family == unix.NFPROTO_NETDEV || family == unix.NFPROTO_IPV4 ||
			family == unix.NFPROTO_IPV6
		if known && attrs[0].Attr.Type == unix.NFTA_TABLE_NAME && nl.BytesToString(attrs[0].Value) == claims.NFTTable {
			g.touched = true
		}
		return false
	}
	if !g.touched {
		return false
	}
	g.touched = false
	id, ok := generationID(attrs)
	if !ok {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.ours[id]:
		delete(g.ours, id)
		return false
	case g.running:
		g.held = append(g.held, id)
		return false
	}
	return true
}

// forget handles lost announcements: one of Hairpin's may be among them.
func (g *generations) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ours = nil
	g.touched = false
}

// begin must be called before a transaction of Hairpin's, and the returned function after it. That
// function reports whether another program made a transaction meanwhile.
func (g *generations) begin(ns string) (done func() bool, err error) {
	before, err := generation(ns)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running, g.held = true, nil
	return func() bool {
		after, err := generation(ns)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.running = false
		foreign := err != nil || after-before > 1 // more than Hairpin's one
		announced := false                        // Hairpin's was
		for _, id := range g.held {
			announced = announced || id == after
			// Either an earlier transaction, or Hairpin's was rejected and this is another one.
			foreign = foreign || id != after || after == before
		}
		if !foreign && !announced && after != before {
			if g.ours == nil {
				g.ours = map[uint32]bool{}
			}
			g.ours[after] = true
		}
		return foreign
	}, nil
}

func generationID(attrs []syscall.NetlinkRouteAttr) (uint32, bool) {
	for _, a := range attrs {
		if a.Attr.Type == unix.NFTA_GEN_ID && len(a.Value) >= 4 {
			return binary.BigEndian.Uint32(a.Value), true
		}
	}
	return 0, false
}

// generation returns the number of the last transaction.
func generation(ns string) (uint32, error) {
	var id uint32
	err := inside.Do(ns, func() error {
		req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
		messages, err := req.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN)
		if err != nil {
			return err
		}
		for _, m := range messages {
			attrs, err := nl.ParseRouteAttr(m[nl.SizeofNfgenmsg:])
			if err != nil {
				return err
			}
			if found, ok := generationID(attrs); ok {
				id = found
				return nil
			}
		}
		return fmt.Errorf("no number in the answer")
	})
	if err != nil {
		return 0, fmt.Errorf("generation of nf_tables: %w", err)
	}
	return id, nil
}
