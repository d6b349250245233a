package cluster

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// AnnotationHostPorts on a Node has the ports that its host uses at the node's own addresses, of
// those that LoadBalancerPools list. The node's agent writes it.
const AnnotationHostPorts = "hairpin.dev/host-ports"

// HostPorts are the ports that a node's host uses.
type HostPorts struct {
	Checked PortRanges // which ports the agent has looked at
	Used    []HostPort // sorted
}

// HostPort is a port at an address of a node. A program of the host listens there, or it is the
// hostPort of a Pod.
type HostPort struct {
	Address netip.Addr // zero: all addresses of the node
	LoadBalancerPort
	Pod Owner // zero: a program of the host
}

// Compare orders by address, protocol and port.
func (p HostPort) Compare(q HostPort) int {
	return cmp.Or(p.Address.Compare(q.Address), p.LoadBalancerPort.compare(q.LoadBalancerPort), p.Pod.Compare(q.Pod))
}

// maxHostPorts is the largest number of Used in the annotation. A node with more has nothing
// Checked, so that no Service gets a port of its addresses.
const maxHostPorts = 1000

type (
	hostPortsJSON struct {
		Checked []string       `json:"checked,omitempty"`
		Used    []hostPortJSON `json:"used,omitempty"`
	}
	hostPortJSON struct {
		IP       netip.Addr      `json:"ip"`
		Protocol corev1.Protocol `json:"protocol"`
		Port     uint16          `json:"port"`
		Pod      string          `json:"pod,omitempty"` // namespace/name
	}
)

// HostPortsAnnotation returns the value of AnnotationHostPorts.
func HostPortsAnnotation(h HostPorts) string {
	var j hostPortsJSON
	if len(h.Used) <= maxHostPorts {
		for _, r := range h.Checked {
			j.Checked = append(j.Checked, r.String())
		}
		for _, u := range h.Used {
			x := hostPortJSON{u.Address, corev1.Protocol(strings.ToUpper(u.Protocol.String())), u.Port, ""}
			if u.Pod != (Owner{}) {
				x.Pod = u.Pod.Namespace + "/" + u.Pod.Name
			}
			j.Used = append(j.Used, x)
		}
	}
	text, err := json.Marshal(j)
	if err != nil {
		panic(err) // strings, numbers and addresses always marshal
	}
	return string(text)
}

// hostPorts reads the annotation.
func (p *nodeParser) hostPorts(o *corev1.Node) {
	text, ok := o.Annotations[AnnotationHostPorts]
	if !ok {
		return
	}
	field := "metadata.annotations[" + AnnotationHostPorts + "]"
	var j hostPortsJSON
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		p.problem(field, "not the expected JSON object: %v", err)
		return
	}
	h := &p.node.HostPorts
	for _, text := range j.Checked {
		r, err := ParsePortRange(text)
		if err != nil {
			p.problem(field, "checked: %v", err)
			continue
		}
		h.Checked = append(h.Checked, r)
	}
	for _, x := range j.Used[:min(len(j.Used), maxHostPorts)] {
		q, err := parseProtocol(x.Protocol)
		if err != nil || !x.IP.IsValid() || x.IP.Zone() != "" || x.Port == 0 {
			p.problem(field, "used: %s %s %d is not a port at an address", x.IP, x.Protocol, x.Port)
			continue
		}
		u := HostPort{Address: x.IP, LoadBalancerPort: LoadBalancerPort{q, x.Port}}
		if namespace, name, is := strings.Cut(x.Pod, "/"); is {
			u.Pod = Owner{Kind: "Pod", Namespace: namespace, Name: name}
		}
		h.Used = append(h.Used, u)
	}
	slices.SortFunc(h.Used, HostPort.Compare)
}
