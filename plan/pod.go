package plan

import (
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/nb"
)

// pods gives every pod of this node its port on the node switch.
func pods(e Env) (datapath.State, []cluster.Problem) {
	rows := make(nb.State, len(e.Pods))
	var problems []cluster.Problem
	for _, p := range e.Pods {
		has, wrong := e.addressOf(p)
		problems = append(problems, wrong...)
		if has == "" || e.Node.Gateway.OpenFlow { // see switchboard
			continue
		}
		may := has
		for _, a := range p.Extra { // it may send from them; who has them says the pods themselves, by ARP
			may += " " + a.String()
		}
		rows.Add(&nb.SwitchPort{
			Name: p.LogicalPort(), Switch: e.Node.Name, Addresses: []string{has}, PortSecurity: []string{may},
			// An interface of the pod with other addresses (an earlier sandbox of the same name) is not this port's.
			Options: map[string]string{"iface-id-ver": p.PortVersion()}, Owner: p.Owner,
		})
	}
	return datapath.State{NB: rows}, problems
}

// addressOf is a pod's MAC and its addresses, as OVN has them; empty without any that is the node's to give.
func (e *Env) addressOf(p *cluster.Pod) (address string, problems []cluster.Problem) {
	for _, ip := range p.IPs {
		if s := e.stack(cluster.FamilyOf(ip)); s != nil && s.Subnet.Contains(ip) {
			address += " " + ip.String()
		} else {
			problems = append(problems, cluster.Problem{Owner: p.Owner, Field: "status.podIPs", Message: ip.String() + " is not in the pod subnets of node " + e.Node.Name})
		}
	}
	if address != "" {
		address = p.MAC.String() + address
	}
	return address, problems
}

// podsOn picks the pods of a node. Of two pods with the same address the first stays.
func podsOn(node string, all []*cluster.Pod) ([]*cluster.Pod, []cluster.Problem) {
	var list []*cluster.Pod
	var problems []cluster.Problem
	has := map[netip.Addr]cluster.Owner{}
	for _, p := range all {
		if p.Node != node {
			continue
		}
		free := true
		for _, ip := range p.IPs {
			if other, ok := has[ip]; ok {
				problems = append(problems, cluster.Problem{Owner: p.Owner, Field: "status.podIPs", Message: ip.String() + " is the address of " + other.String() + " already"})
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
				problems = append(problems, cluster.Problem{Owner: p.Owner, Field: "metadata.annotations[" + cluster.AnnotationExtraAddresses + "]", Message: a.String() + " is the address of " + has[a].String()})
			} else {
				c.Extra = append(c.Extra, a)
			}
		}
		list[i] = &c
	}
	return list, problems
}
