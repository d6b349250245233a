package uplink

import (
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"hairpin/claims"
	"hairpin/ovsdb"
)

// Datapath types of bridges.
const (
	kernelDatapath    = "system"
	UserspaceDatapath = "netdev"
)

// DatapathType returns the datapath type of new bridges: the choice of Open vSwitch's entry script,
// or the configuration of ovn-controller; else the type of br-int, or of the first bridge by name;
// else the kernel's, if the kernel has it. Bridges of different types cannot be connected.
func DatapathType(v ovsdb.View) string {
	if row := ovsdb.First[ovsdb.OpenVSwitch](v); row != nil {
		for _, key := range []string{keyDatapath, "ovn-bridge-datapath-type"} {
			if t := row.ExternalIDs[key]; t != "" {
				return t
			}
		}
	}
	all := slices.SortedFunc(ovsdb.Rows[ovsdb.Bridge](v),
		func(a, b *ovsdb.Bridge) int { return strings.Compare(a.Name, b.Name) })
	if len(all) > 0 {
		first := all[0]
		if i := slices.IndexFunc(all,
			func(b *ovsdb.Bridge) bool { return b.Name == claims.IntegrationBridge }); i >= 0 {
			first = all[i]
		}
		if first.DatapathType == "" {
			return kernelDatapath
		}
		return first.DatapathType
	}
	if _, err := netlink.GenlFamilyGet("ovs_datapath"); err == nil {
		return kernelDatapath
	}
	return UserspaceDatapath
}

// TSO reports whether the userspace datapath exchanges TCP segments with the kernel before
// segmentation and without checksums.
func TSO(v ovsdb.View) bool {
	row := ovsdb.First[ovsdb.OpenVSwitch](v)
	return row != nil && row.ExternalIDs[keyTSO] == "true"
}
