package plan

import (
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/nb"
)

// pods gives every pod of this node its port on the node switch.
func pods(e Env) (datapath.State, []Problem) {
	rows := make(nb.State, len(e.Pods))
	var problems []Problem
	for _, p := range e.Pods {
		address := []string{p.MAC.String()}
		for _, ip := range p.IPs {
			s := e.stack(cluster.FamilyOf(ip))
			if s == nil || !s.Subnet.Contains(ip) {
				problems = append(problems, Problem{Owner: p.Owner, Field: "status.podIPs", Message: ip.String() + " is not in the pod subnets of node " + e.Node.Name})
				continue
			}
			address = append(address, ip.String())
		}
		if len(address) == 1 {
			continue
		}
		has := []string{strings.Join(address, " ")}
		may := has
		if len(p.Extra) > 0 { // it may send from them; who has them says the pods themselves, by ARP
			for _, a := range p.Extra {
				address = append(address, a.String())
			}
			may = []string{strings.Join(address, " ")}
		}
		rows.Add(&nb.SwitchPort{
			Name: p.LogicalPort(), Switch: e.Node.Name, Addresses: has, PortSecurity: may,
			// An interface of the pod with other addresses (an earlier sandbox of the same name) is not this port's.
			Options: map[string]string{"iface-id-ver": p.PortVersion()}, Owner: p.Owner,
		})
	}
	return datapath.State{NB: rows}, problems
}

// podsOn picks the pods of a node. Of two pods with the same address the first stays.
func podsOn(node string, all []*cluster.Pod) ([]*cluster.Pod, []Problem) {
	var list []*cluster.Pod
	var problems []Problem
	has := map[netip.Addr]cluster.Owner{}
	for _, p := range all {
		if p.Node != node {
			continue
		}
		free := true
		for _, ip := range p.IPs {
			if other, ok := has[ip]; ok {
				problems = append(problems, Problem{Owner: p.Owner, Field: "status.podIPs", Message: ip.String() + " is the address of " + other.String() + " already"})
				free = false
			}
		}
		if !free {
			continue
		}
		for _, ip := range p.IPs {
			has[ip] = p.Owner
		}
		list = append(list, p)
	}
	for i, p := range list {
		taken := func(a netip.Addr) bool { o, ok := has[a]; return ok && o != p.Owner }
		if !slices.ContainsFunc(p.Extra, taken) {
			continue
		}
		c := *p
		c.Extra = nil
		for _, a := range p.Extra {
			if taken(a) {
				problems = append(problems, Problem{Owner: p.Owner, Field: "metadata.annotations[" + cluster.AnnotationExtraAddresses + "]", Message: a.String() + " is the address of " + has[a].String()})
			} else {
				c.Extra = append(c.Extra, a)
			}
		}
		list[i] = &c
	}
	return list, problems
}
