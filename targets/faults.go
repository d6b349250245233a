package targets

import "hairpin/apply"

// fault is a bug of some Open vSwitch versions that affects Hairpin.
// docs/reference/compatibility.md has the table.
type fault struct {
	since, mended string // the first version with it, and the first without it; empty = all so far
	datapath      string // the affected datapath: empty = both
	does          string
	known         string // the evidence: trials, or upstream's history
}

// Datapaths that a fault can affect.
const (
	userspace    = "userspace"
	userspaceTSO = "userspace, with TSO"
)

func faults() []fault {
	return []fault{
		{"", "3.7.0", userspace,
			"fragments are lost where they are translated: UDP beyond the MTU does not pass Services",
			"trials: with `service-engine = ovn`, 33 of 38 fail with 3.5.0; with 4.0.0 all pass, with both engines. " +
				"By upstream's history 9e7d897ca (3.5.1) and, for 3.6, 3ffb1c401 (3.7.0)"},
		{"", "", userspace,
			"ICMPv6 errors that are translated arrive with a wrong MTU: IPv6 connections through a Service hang " +
				"where the path has a smaller MTU",
			"trials: 6 of `mtu of the way` and 2 of `fragments` fail with 3.5.0 and 4.0.0. `nat_packet` of " +
				"lib/conntrack.c adjusts a checksum of UDP or TCP in the outer packet, which is ICMPv6"},
		{"", "3.5.2", userspace, "ICMP errors about fragments are not translated", "upstream's history: ec25716cb"},
		{"", "3.5.1", userspaceTSO, "UDP over IPv6 leaves the node with a wrong checksum",
			"trials: 56 of 689 fail with 3.5.0, all of them UDP over IPv6 by the wire; by upstream's history 3e8324dbb"},
		{"", "3.5.1", "", "after a change of a group with dp_hash, packets go to the wrong bucket",
			"upstream's history: 445594155"},
		{"3.5.1", "3.5.2", "", "a group is read while it is being changed", "upstream's history: a62afea47"},
	}
}

// Faults returns the known bugs of a version of Open vSwitch, such as "3.5.0", each with the
// version that fixes it.
func Faults(version string, inUserspace, tso bool) []string {
	atLeast := func(v string) bool { return apply.NeedVersion("", version, v) == nil }
	var list []string
	for _, f := range faults() {
		if f.datapath == userspace && !inUserspace || f.datapath == userspaceTSO && !tso || f.since != "" &&
			!atLeast(f.since) || f.mended != "" && atLeast(f.mended) {
			continue
		}
		until := "in all versions so far"
		if f.mended != "" {
			until = "until " + f.mended
		}
		list = append(list, f.does+" ("+until+")")
	}
	return list
}
