package parse

import (
	"slices"
	"strconv"
	"time"

	v1 "hairpin/api/v1"
	"hairpin/claims"
	"hairpin/cluster"
)

// EgressServiceSpec is what an EgressService requests, and the host in its status.
type EgressServiceSpec struct {
	Owner   cluster.Owner
	UID     string
	Created time.Time
	Network bool   // sourceIPBy Network
	Table   string // as in spec.network
	Nodes   cluster.Selector
	Host    string // as in the status
	Invalid bool   // it has a problem and therefore no effect
}

// EgressService returns what an EgressService requests.
func EgressService(o *v1.EgressService) (*EgressServiceSpec, []cluster.Problem) {
	e := &EgressServiceSpec{
		Owner: Owner(o), UID: string(o.UID), Created: o.CreationTimestamp.Time, Host: o.Status.Host,
		Network: o.Spec.SourceIPBy == v1.SourceNetwork, Table: o.Spec.Network,
	}
	var problems cluster.Problems
	bad := func(field, format string, args ...any) {
		problems.Add(e.Owner, field, format, args...)
		e.Invalid = true
	}
	if !slices.Contains([]string{"", v1.SourceLoadBalancerIP, v1.SourceNetwork}, o.Spec.SourceIPBy) {
		bad("spec.sourceIPBy", "%q is neither %s nor %s", o.Spec.SourceIPBy, v1.SourceLoadBalancerIP, v1.SourceNetwork)
	}
	if x := o.Spec.Network; x != "" && (!cluster.IsLinkName(x) || !routeTable(x)) {
		bad("spec.network", "%q is neither a VRF's name nor the number of a route table of the machine's own", x)
	}
	var err error
	if e.Nodes, err = parseSelector(&o.Spec.NodeSelector); err != nil {
		bad("spec.nodeSelector", "%v", err)
	}
	return e, problems.List()
}

// routeTable reports whether a name can be that of a VRF or of a route table that is not Hairpin's.
// Hairpin's tables are claims.ForwardTable, and claims.EgressTableBase plus the index of a link.
// Indexes below EgressTableBase are taken into account.
func routeTable(name string) bool {
	const (
		defaultTable, localTable = 253, 255 // main is 254
		firstOwn, lastOwn        = claims.ForwardTable, 2*claims.EgressTableBase - 1
		last                     = 1<<31 - 1
	)
	n, err := strconv.ParseInt(name, 10, 64)
	return err != nil || n > 0 && n <= last && (n < defaultTable || n > localTable) && (n < firstOwn || n > lastOwn)
}
