package page

import (
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/policy"
)

// servicesView is the list of Services.
type servicesView struct {
	Find string
	Rows []serviceRow
	More int
}

// Services renders the page of all Services. find is a part of their names.
func Services(f Frame, s *cluster.Snapshot, find string, problems []string) ([]byte, error) {
	v := &servicesView{Find: find}
	v.Rows, v.More = serviceRows(s, nil, Query{}, find)
	return (&view{Frame: f, Title: "Services", Services: v}).render(problems)
}

// egressView is the list of EgressIPs and EgressServices.
type egressView struct {
	Find string
	Rows []egressObject
	More int
}

type egressObject struct {
	Name, Kind string
	Addresses  []egressAddress
	Pods       []podLink
	MorePods   int
}

// podLink is a pod with its page.
type podLink struct{ Name, Link string }

// maxPodLinks is the largest number of pods in a row.
const maxPodLinks = 8

// Egress renders the page of all EgressIPs and EgressServices. find is a part of their names.
func Egress(f Frame, s *cluster.Snapshot, h *Health, find string, problems []string) ([]byte, error) {
	v := &egressView{Find: find}
	all := egressAddresses(s, h)
	labels := map[string]map[string]string{}
	for _, n := range s.Namespaces {
		labels[n.Name] = n.Labels
	}
	for _, e := range s.EgressIPs {
		if !strings.Contains(e.DisplayName(), find) {
			continue
		}
		if len(v.Rows) == maxRows {
			v.More++
			continue
		}
		r := egressObject{Name: e.DisplayName(), Kind: e.Owner.Kind}
		for _, a := range all {
			if a.Object == r.Name {
				r.Addresses = append(r.Addresses, a)
			}
		}
		for _, p := range s.Pods {
			if e.Selects(p, labels[p.Owner.Namespace]) {
				r.Pods, r.MorePods = addPod(r.Pods, r.MorePods, p)
			}
		}
		v.Rows = append(v.Rows, r)
	}
	return (&view{Frame: f, Title: "Egress addresses", Egress: v}).render(problems)
}

func addPod(list []podLink, more int, p *cluster.Pod) ([]podLink, int) {
	if len(list) == maxPodLinks {
		return list, more + 1
	}
	return append(list, podLink{p.Owner.Namespace + "/" + p.Owner.Name, podPath(p.Owner)}), more
}

// policiesView is the list of policies.
type policiesView struct {
	Find string
	Rows []*policyRow
	More int
}

type policyRow struct {
	*cluster.Policy
	Pods     []podLink
	MorePods int
}

// Policies renders the page of all policies. find is a part of their names.
func Policies(f Frame, s *cluster.Snapshot, find string, problems []string) ([]byte, error) {
	v := &policiesView{Find: find}
	rows := map[cluster.Owner]*policyRow{}
	for _, x := range s.Policies {
		if !strings.Contains(x.Owner.String(), find) {
			continue
		}
		if len(v.Rows) == maxRows {
			v.More++
			continue
		}
		r := &policyRow{Policy: x}
		rows[x.Owner] = r
		v.Rows = append(v.Rows, r)
	}
	for _, p := range s.Pods {
		selecting := slices.Concat(policy.Selecting(s, p, policy.Ingress), policy.Selecting(s, p, policy.Egress))
		seen := map[cluster.Owner]bool{}
		for _, x := range selecting {
			if r := rows[x.Owner]; r != nil && !seen[x.Owner] {
				seen[x.Owner] = true
				r.Pods, r.MorePods = addPod(r.Pods, r.MorePods, p)
			}
		}
	}
	return (&view{Frame: f, Title: "Policies", Policies: v}).render(problems)
}

// problemsView is the list of all problems.
type problemsView struct {
	Find string
	Rows []problemRow
	More int
}

// problemRow is a problem, with the page of its object.
type problemRow struct{ Text, Link string }

// Problems renders the page of all problems of objects and nodes. find is a part of their texts.
func Problems(f Frame, h *Health, find string, problems []string) ([]byte, error) {
	v := &problemsView{Find: find}
	var all []string
	all = append(all, problems...)
	if h != nil {
		if h.Error != "" {
			all = append(all, h.Error)
		}
		for name, x := range h.Nodes {
			for _, text := range x.Unhealthy {
				all = append(all, "Node/"+name+": "+text)
			}
			if x.Report != nil {
				all = append(all, x.Report.Problems...) // which name their objects
			}
		}
	}
	for _, text := range slices.Compact(slices.Sorted(slices.Values(all))) {
		switch {
		case !strings.Contains(text, find):
		case len(v.Rows) == maxRows:
			v.More++
		default:
			v.Rows = append(v.Rows, problemRow{text, ownerPath(text)})
		}
	}
	return (&view{Frame: f, Title: "Problems", AllProblems: v}).render(nil)
}
