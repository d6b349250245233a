// Package ovnlb plans the Service engine "ovn": Services as load balancers of OVN on the node's
// switch and gateway router, and the distributed gateway port by which a host reaches Services
// (node-local = dgp).
//
// It plans everything that only this engine needs, also on the gateway bridge and on the host.
package ovnlb
