package ofctl

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"hairpin/apply/ofctl/vsctl"
	"hairpin/claims"
	"hairpin/ovsdb"
)

// Usage is the use of a limit, Hairpin's or an administrator's.
type Usage struct{ Used, Limit int }

// Usage returns the connections of claims.ZoneServices and the flows of
// pipeline.SvcSessionAffinity, each nil without a limit.
func (t *Target) Usage(ctx context.Context) (connections, learned *Usage, err error) {
	v := t.db.View()
	b := ovsdb.BridgeNamed(v, claims.ServiceBridge)
	if b == nil {
		return nil, nil, nil
	}
	inUserspace := vsctl.InUserspace(b)
	if l := vsctl.ZoneLimit(v, inUserspace); l.Value != nil {
		text, failed := t.vswitchd(ctx, "dpctl/ct-get-limits", dpctlName(inUserspace), "zone="+strconv.Itoa(l.Number))
		connections, err = usage(text, *l.Value, failed)
	}
	if l := vsctl.AffinityLimit(v, b); l.Value != nil {
		tables, failed := t.tables(ctx, b.Name)
		if failed == nil {
			learned = &Usage{int(tables[uint8(l.Number)].Flows), *l.Value}
		}
		err = errors.Join(err, failed)
	}
	return connections, learned, err
}

// usage parses the number of connections at the end of an answer to dpctl/ct-get-limits.
func usage(text string, limit int, err error) (*Usage, error) {
	if err != nil {
		return nil, err
	}
	_, number, _ := strings.Cut(text, "count=")
	n, err := strconv.Atoi(strings.TrimSpace(number))
	if err != nil {
		return nil, fmt.Errorf("Open vSwitch says %q, without count=", text)
	}
	return &Usage{n, limit}, nil
}
