package ofctl

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"hairpin/apply/unixctl"
	"hairpin/claims"
	"hairpin/datapath/flow"
	"hairpin/ovsdb"
	"hairpin/pipeline"
)

// Stats are figures of the running ovs-vswitchd, and of the datapath that all bridges of the node
// share.
type Stats struct {
	// Objects are those in memory, by kind: "rules" are OpenFlow flows of all bridges, "udpif keys"
	// megaflows.
	Objects map[string]uint64
	// Missed are packets without a megaflow, which ovs-vswitchd handles. Lost are those of them
	// that were dropped because a queue was full.
	Missed, Lost uint64
	// Drops are packets that were dropped for other reasons than an OpenFlow flow, by the name of
	// the counter. The kernel datapath counts none.
	Drops map[string]uint64
	// Connections are all of the userspace datapath; nil for the kernel's, which has those of the
	// host.
	Connections *Usage
}

// Patterns of the answers to dpctl/show and coverage/show.
var (
	lookups = regexp.MustCompile(`lookups: hit:\d+ missed:(\d+) lost:(\d+)`)
	dropped = regexp.MustCompile(`(?m)^(datapath_drop_\w+|drop_action_\w+) .* total: (\d+)$`)
)

// droppedByFlow counts drops by OpenFlow flows, and by missing ones.
const droppedByFlow = "drop_action_of_pipeline"

// Stats reads the figures. With an error, some of them may be missing.
func (t *Target) Stats(ctx context.Context) (s Stats, err error) {
	inUserspace, err := t.inUserspace()
	if err != nil {
		return s, err
	}
	var errs []error
	ask := func(method string, params ...string) string {
		text, err := t.vswitchd(ctx, method, params...)
		errs = append(errs, err)
		return text
	}
	number := func(text string) uint64 {
		n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
		if err != nil && text != "" {
			errs = append(errs, fmt.Errorf("Open vSwitch says %q, not a number", text))
		}
		return n
	}
	s.Objects = unixctl.Memory(ask("memory/show"))
	if m := lookups.FindStringSubmatch(ask("dpctl/show", dpctlName(inUserspace))); m != nil {
		s.Missed, s.Lost = number(m[1]), number(m[2])
	}
	s.Drops = map[string]uint64{}
	for _, m := range dropped.FindAllStringSubmatch(ask("coverage/show"), -1) {
		if m[1] != droppedByFlow {
			s.Drops[m[1]] = number(m[2])
		}
	}
	if inUserspace {
		s.Connections = &Usage{Used: int(number(ask("dpctl/ct-get-nconns", dpctlName(true)))),
			Limit: int(number(ask("dpctl/ct-get-maxconns", dpctlName(true))))}
	}
	return s, errors.Join(errs...)
}

// DropCounts returns the packet counts of the flows that drop, see claims.FeatureDrop.
func (t *Target) DropCounts(ctx context.Context) (map[flow.Key]uint64, error) {
	const bit = uint64(claims.FeatureDrop) << 32
	return t.counts(ctx, bit|claims.Cookie, bit|claims.CookieMask)
}

// Unmatched returns the packets that matched no OpenFlow flow, by table of claims.ServiceBridge,
// which drops them.
func (t *Target) Unmatched(ctx context.Context) (map[uint8]uint64, error) {
	b := ovsdb.BridgeNamed(t.db.View(), claims.ServiceBridge)
	if b == nil {
		return nil, nil
	}
	tables, err := t.tables(ctx, b.Name)
	unmatched := map[uint8]uint64{}
	for id, table := range tables {
		if _, ours := pipeline.Lookup(pipeline.Service, id); ours && table.Lookups > table.Matched {
			unmatched[id] = table.Lookups - table.Matched
		}
	}
	return unmatched, err
}
