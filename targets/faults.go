package targets

import "hairpin/apply"

// fault is a bug of some Open vSwitch versions that affects Hairpin.
// docs/reference/compatibility.md has the table.
type fault struct {
	since, fixed string // the first version with it, and the first without it; empty = all so far
	datapath     string // the affected datapath: empty = both
	effect       string
	evidence     string // trials, or the upstream commit that fixes it
}

// Datapaths that a fault can affect.
const (
	userspace    = "userspace"
	userspaceTSO = "userspace, with TSO"
)

func faults() []fault {
	return []fault{
		{"", "3.7.0", userspace,
			"fragments are lost when their addresses are translated: UDP datagrams larger than the MTU do not reach Services",
			"trials with `service-engine = ovn`: 33 of 38 fail with 3.5.0. With 4.0.0 all pass, with both engines. " +
				"Upstream commits 9e7d897ca (3.5.1) and 3ffb1c401 (for 3.6, in 3.7.0)"},
		{"", "", userspace,
			"translated ICMPv6 errors have a wrong MTU: IPv6 connections through a Service hang " +
				"where the path MTU is smaller",
			"trials: 6 of `path mtu` and 2 of `fragments` fail with 3.5.0 and 4.0.0. `nat_packet` in " +
				"lib/conntrack.c changes a UDP or TCP checksum of the outer packet, which is ICMPv6"},
		{"", "4.0.0", userspace,
			"a pod can send fragments to ports that policies deny: fragments of datagrams that are completed in one batch " +
				"can follow the actions for a later packet",
			"320 datagrams in 10 batches, to a pod of the node with a policy for another port: with 3.5.0, the first and last " +
				"fragments of 64 arrived; with 4.0.0, of none. Upstream commits 484208bd1 (3.6.0, also in 3.5.1) for packets of other " +
				"ports, and 04cbb4812 (4.0.0)"},
		{"", "3.5.2", userspace, "ICMP errors about fragments are not translated", "upstream commit ec25716cb"},
		{"", "3.5.1", userspaceTSO, "UDP over IPv6 leaves the node with a wrong checksum",
			"trials: 56 of 689 fail with 3.5.0, all of UDP over IPv6 between machines. Upstream commit 3e8324dbb"},
		{"", "3.5.1", "", "after a change of a group with dp_hash, packets go to the wrong bucket",
			"upstream commit 445594155"},
		{"3.5.1", "3.5.2", "", "a group is read while it is being changed", "upstream commit a62afea47"},
	}
}

// Faults returns the known bugs of a version of Open vSwitch, such as "3.5.0", each with the
// version that fixes it.
func Faults(version string, inUserspace, tso bool) []string {
	atLeast := func(v string) bool { return apply.NeedVersion("", version, v) == nil }
	var list []string
	for _, f := range faults() {
		if f.datapath == userspace && !inUserspace || f.datapath == userspaceTSO && !tso || f.since != "" &&
			!atLeast(f.since) || f.fixed != "" && atLeast(f.fixed) {
			continue
		}
		until := "in all versions so far"
		if f.fixed != "" {
			until = "until " + f.fixed
		}
		list = append(list, f.effect+" ("+until+")")
	}
	return list
}
