package annotation

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"hairpin/cluster"
)

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

// FormatHostPorts returns the value of HostPorts.
func FormatHostPorts(h cluster.HostPorts) string {
	var j hostPortsJSON
	if len(h.Used) <= maxHostPorts {
		for _, r := range h.Checked {
			j.Checked = append(j.Checked, r.String())
		}
		for _, u := range h.Used {
			x := hostPortJSON{u.Address, corev1.Protocol(strings.ToUpper(u.Protocol.String())), u.Port, ""}
			if u.Pod != (cluster.Owner{}) {
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

// ParseHostPorts reads the output of FormatHostPorts.
func ParseHostPorts(text string) (h cluster.HostPorts, errs []error) {
	var j hostPortsJSON
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return h, invalid{fmt.Errorf("not the expected JSON object: %w", err)}
	}
	var wrong invalid
	for _, text := range j.Checked {
		r, err := cluster.ParsePortRange(text)
		if err != nil {
			wrong.add("checked: %w", err)
			continue
		}
		h.Checked = append(h.Checked, r)
	}
	for _, x := range j.Used[:min(len(j.Used), maxHostPorts)] {
		q, err := cluster.ParseProtocol(x.Protocol)
		if err != nil || !x.IP.IsValid() || x.IP.Zone() != "" || x.Port == 0 {
			wrong.add("used: %s %s %d is not a port at an address", x.IP, x.Protocol, x.Port)
			continue
		}
		u := cluster.HostPort{Address: x.IP, LoadBalancerPort: cluster.LoadBalancerPort{Protocol: q, Port: x.Port}}
		if namespace, name, is := strings.Cut(x.Pod, "/"); is {
			u.Pod = cluster.Owner{Kind: "Pod", Namespace: namespace, Name: name}
		}
		h.Used = append(h.Used, u)
	}
	slices.SortFunc(h.Used, cluster.HostPort.Compare)
	return h, wrong
}
