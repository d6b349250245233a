package gateway

import (
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/nb"
	"hairpin/plan/node"
)

// Pods plans a port on the node switch for each pod of this node.
func Pods(e node.Env) (datapath.State, []cluster.Problem) {
	rows := make(nb.State, len(e.Pods))
	var problems []cluster.Problem
	for _, p := range e.Pods {
		address, wrong := e.AddressOf(p)
		problems = append(problems, wrong...)
		if address == "" || !e.Engine.PodPorts { // svcbridge adds its port
			continue
		}
		allowed := address
		for _, a := range p.Extra { // the pod may send from them, and announces them by ARP
			allowed += " " + a.String()
		}
		rows.Add(&nb.SwitchPort{
			Name: p.LogicalPort(), Switch: e.Node.Name, Addresses: []string{address}, PortSecurity: []string{allowed},
			// An interface of the pod with other addresses (an earlier sandbox of the same name)
			// does not belong to this port.
			Options: map[string]string{"iface-id-ver": p.PortVersion()}, Owner: p.Owner,
		})
	}
	return datapath.State{NB: rows}, problems
}
