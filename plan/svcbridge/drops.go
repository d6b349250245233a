package svcbridge

import (
	"hairpin/claims"
	"hairpin/datapath/flow"
	"hairpin/pipeline"
)

// Reasons of drops that are no name of a table.
const (
	ReasonNoLocal = "no local endpoint" // traffic policy Local
	ReasonSource  = "source ranges"     // of a load balancer
	ReasonPolicy  = "network policy"
)

// DropReason returns why a planned flow drops packets, or "" if it does not: the table, if nothing
// more precise is known.
func DropReason(f *flow.Flow) string {
	service := f.Owner.Kind == "Service"
	switch {
	case f.Feature&claims.FeatureDrop == 0:
		return ""
	case service && f.Bridge == claims.ServiceBridge && f.Priority != prioSourceDenied:
		return ReasonNoLocal
	case service:
		return ReasonSource
	}
	return TableReason(pipeline.Bridge(f.Bridge), f.Table)
}

// TableReason returns the reason of drops in a table.
func TableReason(b pipeline.Bridge, table uint8) string {
	if b == pipeline.Service && table == pipeline.SvcPolicyDrop {
		return ReasonPolicy
	}
	return pipeline.Name(b, table)
}
