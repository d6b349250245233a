package agent

import (
	"slices"
	"time"

	"hairpin/apply"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/egress/view"
	"hairpin/hostnet/uplink"
	"hairpin/report"
	"hairpin/targets"
)

// openvswitch describes the node's Open vSwitch. It returns nil until the version is known.
func (a *agent) openvswitch() *report.Switch {
	if a.vswitch.Version == "" {
		return nil
	}
	x := report.Switch{Version: a.vswitch.Version, Userspace: a.host.found.Gateway.Userspace}
	x.TSO = x.Userspace && uplink.TSO(a.ovs.View())
	x.Faults = targets.Faults(x.Version, x.Userspace, x.TSO)
	return &x
}

// report returns the agent's report after a round. A brief report omits the cluster's egress
// addresses: it takes half a second to find the next node of each, with 1 000 EgressIPs on 100
// nodes. Any goroutine may call report.
func (a *agent) report(last roundResult, brief bool) report.Report {
	r := report.Report{
		Node: a.node, Version: report.Version(), Reason: last.reason, Pods: len(a.pods.cni.Pods()),
		Restarts: last.restarts,
		NoRepair: !a.config.Process.Repair, Engine: a.config.Cluster.ServiceEngine, Switch: last.openvswitch,
	}
	r.Ready = r.Reason == ""
	for _, s := range a.pass.Status() {
		// On a node without eBPF programs, their part matters only if they cannot be removed.
		if s.System != datapath.Redirect.System || a.redirects() || !s.InSync {
			r.Parts = append(r.Parts, partOf(s))
		}
	}
	for _, p := range cluster.SortProblems(slices.Concat(last.problems, last.listenErrors, last.nodeProblems)) {
		r.Problems = append(r.Problems, p.Error())
	}
	a.reportOps(&r)
	if last.snapshot != nil && !brief {
		r.Egress = view.Report(last.snapshot, last.base)
		last.carriers.setSince(r.Egress)
	}
	if last.snapshot != nil {
		r.Services = len(last.snapshot.Frontends)
		r.IsolatedPods = last.isolated
		for _, p := range last.snapshot.Policies {
			if p.Tier == cluster.TierNetworkPolicy {
				r.NetworkPolicies++
			} else {
				r.ClusterNetworkPolicies++
			}
		}
	}
	return r
}

func partOf(s apply.Status) report.Part {
	p := report.Part{System: s.System, InSync: s.InSync, Since: s.Since, Reads: s.Reads, Applies: s.Applies,
		Written: s.Written, Drift: s.Drift, Errors: s.Errors}
	if s.Err != nil {
		p.Error = s.Err.Error()
	}
	return p
}

// reportOps adds health, listeners, the host's part, redirected packets and the API to a report.
func (a *agent) reportOps(r *report.Report) {
	r.Degraded = a.monitor.health.DataplaneError(time.Now())
	r.Leaving = !a.monitor.health.Eligible()
	r.Listeners = a.monitor.listeners.Report()
	if p := a.host.scanner.Report.Load(); p != nil {
		r.Parts = append(r.Parts, *p)
	}
	r.Redirect = a.redirectedPackets()
	if a.config.Process.Manifests == "" {
		r.API = new(a.api.Report())
	}
}

// redirectedPackets returns the packet counters of the eBPF programs; nil without programs.
func (a *agent) redirectedPackets() *report.Redirect {
	if !a.redirects() {
		return nil
	}
	n, err := a.targets.Redirect.Counters()
	if err != nil {
		a.log.Debug("count redirected packets", "error", err)
	}
	return (*report.Redirect)(n)
}
