package conntrack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"hairpin/datapath/conn"
)

// maxInSwitch is the maximum number of translations to delete at once. For each, Open vSwitch
// iterates over all entries, and forwards nothing meanwhile. Further entries stay until their
// clients stop sending.
const maxInSwitch = 256

// deleteInSwitch deletes entries of the userspace datapath's conntrack, by some of their fields and
// without listing. All entries of an address that was not served before are stale. Deletion is safe
// unless a flow commits a new connection with an empty nat(): of such, Open vSwitch up to 4.0.0
// keeps a pointer to freed memory (conn_clean__ of its lib/conntrack.c).
func (t *Target) deleteInSwitch(ctx context.Context, d conn.Delta) error {
	pairs := slices.DeleteFunc(slices.Clone(d.Dead), func(p conn.Pair) bool {
		_, unserved := slices.BinarySearchFunc(d.Unserved, p.VIP, netip.AddrPort.Compare)
		return unserved
	})
	for _, vip := range slices.AppendSeq(slices.Clone(d.Unserved), maps.Keys(d.Revived)) {
		pairs = append(pairs, conn.Pair{VIP: vip}) // with any endpoint
	}
	if t.cfg.Switch == nil || len(pairs) == 0 {
		return nil
	}
	datapaths, err := t.cfg.Switch(ctx, "dpctl/dump-dps")
	if err != nil {
		return err
	}
	var datapath string
	for name := range strings.Lines(datapaths) {
		if strings.HasPrefix(name, "netdev@") {
			datapath = strings.TrimSpace(name)
		}
	}
	if datapath == "" {
		return nil // the kernel's conntrack has all entries
	}
	for _, p := range pairs[:min(len(pairs), maxInSwitch)] {
		params, what := []string{datapath, fieldsOf("dst", p.VIP)}, p.VIP.String()
		if p.To.IsValid() {
			params, what = append(params, fieldsOf("src", p.To)), what+" translated to "+p.To.String()
		}
		if _, failed := t.cfg.Switch(ctx, "dpctl/flush-conntrack", params...); failed != nil {
			err = errors.Join(err, fmt.Errorf("end UDP connections to %s: %w", what, failed))
		}
	}
	return err
}

// fieldsOf returns a tuple for dpctl/flush-conntrack (ovs-vswitchd(8)) with one address and port.
func fieldsOf(end string, a netip.AddrPort) string {
	address := "ct_nw_" + end
	if a.Addr().Is6() {
		address = "ct_ipv6_" + end
	}
	return fmt.Sprintf("%s=%s,ct_nw_proto=17,ct_tp_%s=%d", address, a.Addr(), end, a.Port())
}
