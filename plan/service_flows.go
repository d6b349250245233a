package plan

import (
	"fmt"
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
)

// switchboardObjects are a node's pods, and their Services, as flows and groups of claims.ServiceBridge, in place of ports and load balancers
// of OVN: who is served where, and by whom, is the same, only the writing differs.
func switchboardObjects(e Env) (datapath.State, []Problem) {
	if !e.Node.Gateway.OpenFlow || len(e.Pods)+len(e.Frontends) == 0 {
		return datapath.State{}, nil
	}
	w := newSwitchboard(&e)
	for _, p := range e.Pods {
		w.pod(p)
	}
	for _, f := range e.Frontends {
		if s := w.stack(f.Family); s != nil {
			w.frontend(s, f)
		}
	}
	return datapath.State{Bridge: w.State}, w.problems
}

// Priorities in TableServices.
const (
	prioServed  = 200
	prioGuarded = 205 // a load balancer's address, for all
	prioRange   = 210 // the same, for those who may
)

// frontend serves pods. A pod finds all endpoints at addresses from outside: the policy for clients outside does not count. What has no endpoint
// at all is the host's to refuse, as what has no Service: of a cluster IP by itself, of other addresses by the mark.
func (w *switchboard) frontend(s *Stack, f *cluster.Frontend) {
	x := w.front(s, f)
	w.owner = f.Owner
	if to := w.group(&x, f.InternalLocal, x.internal); to != nil {
		w.lead(&x, prioServed, netip.Prefix{}, netip.AddrPortFrom(f.ClusterIP, f.Port), to)
	}
	for _, v := range w.outer(s, f) {
		w.external(&x, v)
	}
}

// external serves an address from outside, of a load balancer's perhaps only to those who may.
func (w *switchboard) external(x *front, vip netip.AddrPort) {
	if !x.guards(vip.Addr()) {
		w.lead(x, prioServed, netip.Prefix{}, vip, w.all(x)...)
		return
	}
	for _, r := range x.SourceRanges {
		w.lead(x, prioRange, r, vip, w.all(x)...)
	}
	w.lead(x, prioGuarded, netip.Prefix{}, vip, flow.Drop{})
}

// all leads to all endpoints.
func (w *switchboard) all(x *front) []flow.Action {
	if to := w.group(x, false, x.cluster); to != nil {
		return []flow.Action{to}
	}
	return []flow.Action{flow.SetPktMark{Mark: claims.MarkRefused}, flow.Resubmit{Table: claims.TableDeliver}}
}

// lead adds a flow for a VIP.
func (w *switchboard) lead(x *front, priority uint16, from netip.Prefix, vip netip.AddrPort, to ...flow.Action) {
	m := flow.Match{Protocol: words(x.Family).l4[x.Protocol], Src: from, Dst: single(vip.Addr()), DstPort: vip.Port()}
	w.add(claims.TableServices, priority, m, to...)
}

func (w *switchboard) problem(x *front, format string, args ...any) {
	w.problems = append(w.problems, Problem{Owner: x.Owner, Message: fmt.Sprintf(format, args...)})
}
