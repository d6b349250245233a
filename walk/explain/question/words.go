package question

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"hairpin/cluster"
	"hairpin/walk/explain/names"
)

// The forms of the two ends of a packet.
const (
	FromForms = "pod/[NAMESPACE/]NAME, host/NODE, outside or outside/ADDRESS"
	ToForms   = "svc/[NAMESPACE/]NAME[:PORT], NAME.NAMESPACE.svc[:PORT], ADDRESS[:PORT], pod/[NAMESPACE/]NAME:PORT or " +
		"outside/ADDRESS[:PORT]"
)

// Sources returns what FROM can be in a cluster, except addresses.
func Sources(s *cluster.Snapshot) []string {
	words := []string{"outside"}
	for _, n := range s.Nodes {
		words = append(words, "host/"+n.Name)
	}
	for _, p := range s.Pods {
		words = append(words, names.Pod(p.Owner))
	}
	return words
}

// Targets returns what TO can be in a cluster, except addresses: Services, with their ports if they
// have several, and Pods, to which the caller adds a port.
func Targets(s *cluster.Snapshot) []string {
	words, ports := []string{"outside"}, map[string][]string{}
	for _, f := range s.Frontends {
		name := "svc/" + f.Owner.Namespace + "/" + f.Owner.Name
		port := cmp.Or(f.PortName, strconv.Itoa(int(f.Port)))
		if ports[name] == nil {
			words = append(words, name)
		}
		if !slices.Contains(ports[name], port) {
			ports[name] = append(ports[name], port)
		}
	}
	for name, list := range ports {
		for _, port := range list {
			if len(list) > 1 {
				words = append(words, name+":"+port)
			}
		}
	}
	for _, p := range s.Pods {
		words = append(words, names.Pod(p.Owner)+":")
	}
	slices.Sort(words)
	return words
}

// inNamespace returns NAMESPACE/NAME for a name without a namespace.
func (r *resolver) inNamespace(name string) string {
	if strings.Contains(name, "/") {
		return name
	}
	return cmp.Or(r.q.DefaultNamespace, "default") + "/" + name
}

// pod returns the Pod with a name.
func (r *resolver) pod(name string) (*cluster.Pod, error) {
	name = r.inNamespace(name)
	var known []string
	for _, p := range r.s.Pods {
		if p.Owner.Namespace+"/"+p.Owner.Name == name {
			return p, nil
		}
		known = append(known, p.Owner.Namespace+"/"+p.Owner.Name)
	}
	return nil, fmt.Errorf("there is no Pod %q with an address of its own (a Pod in the host's network is host/NODE)%s",
		name, names.Nearest(name, known))
}

// noNode reports an unknown Node, with all names of a small cluster.
func (r *resolver) noNode(name string) error {
	const most = 20
	var known []string
	for _, n := range r.s.Nodes {
		known = append(known, n.Name)
	}
	if len(known) > most {
		return fmt.Errorf("there is no Node %q%s", name, names.Nearest(name, known))
	}
	return fmt.Errorf("there is no Node %q; there are %s", name, cmp.Or(strings.Join(known, ", "), "none"))
}

// toPod parses [NAMESPACE/]NAME:PORT. PORT is a number, or the name of a port of the Pod's
// containers.
func (r *resolver) toPod(rest string) error {
	name, port, _ := strings.Cut(rest, ":")
	p, err := r.pod(name)
	if err != nil {
		return err
	}
	number, err := r.podPort(p, port)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(p.IPs,
		func(a netip.Addr) bool { return r.q.Family == 0 || cluster.FamilyOf(a) == r.q.Family })
	if i < 0 {
		return fmt.Errorf("the Pod has no %s address", r.q.Family)
	}
	return r.sendTo(netip.AddrPortFrom(p.IPs[i], number), "the pod's address")
}

// podPort returns a port of a Pod by number or name. The name decides about the protocol as well.
func (r *resolver) podPort(p *cluster.Pod, port string) (uint16, error) {
	if number, err := strconv.ParseUint(port, 10, 16); err == nil && number > 0 {
		return uint16(number), nil
	}
	var has []string
	for _, x := range p.Ports {
		if x.Name == port && (r.q.Protocol == 0 || r.q.Protocol == x.Protocol) {
			r.Packet.Protocol = x.Protocol
			return x.Port, nil
		}
		has = append(has, fmt.Sprintf("%s (%d/%s)", x.Name, x.Port, x.Protocol))
	}
	if len(has) > 0 {
		return 0, fmt.Errorf("%q is not a port; the Pod names %s", port, names.List(has))
	}
	return 0, fmt.Errorf("%q is not a port; pod/NAMESPACE/NAME:PORT", port)
}

// dnsName returns NAMESPACE/NAME[:PORT] for the DNS name of a Service, NAME.NAMESPACE.svc with or
// without the cluster's domain.
func dnsName(word string) (string, bool) {
	host, port, more := strings.Cut(word, ":")
	labels := strings.Split(host, ".")
	if len(labels) < 3 || labels[2] != "svc" {
		return "", false
	}
	name := labels[1] + "/" + labels[0]
	if more {
		name += ":" + port
	}
	return name, true
}

// toAddress parses ADDRESS[:PORT]. Without a number, the port is that of the Service with the
// address, by its name if it has several, or of the Pod.
func (r *resolver) toAddress(word string) error {
	a, port, err := splitAddress(word)
	if err != nil {
		return fmt.Errorf("must be %s", ToForms)
	}
	if err := r.family(a); err != nil {
		return err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return r.namedPort(a, port)
	}
	to := netip.AddrPortFrom(a, uint16(number))
	for _, f := range r.s.Frontends {
		if r.q.Protocol != 0 && f.Protocol != r.q.Protocol {
			continue
		}
		if kind := r.addressKind(f, to); kind != "" {
			r.Frontend, r.Packet.Protocol = f, f.Protocol
			return r.sendTo(to, kind)
		}
	}
	return r.sendTo(to, "address")
}

// splitAddress splits ADDRESS[:PORT].
func splitAddress(word string) (a netip.Addr, port string, err error) {
	if a, err = netip.ParseAddr(strings.Trim(word, "[]")); err == nil {
		return a, "", nil
	}
	i := strings.LastIndexByte(word, ':')
	if i < 0 {
		return a, "", err
	}
	a, err = netip.ParseAddr(strings.Trim(word[:i], "[]"))
	return a, word[i+1:], err
}

// namedPort selects the port of the Service or Pod with an address by its name; empty: its only
// one.
func (r *resolver) namedPort(a netip.Addr, name string) error {
	var all []*cluster.Frontend
	for _, f := range r.s.Frontends {
		if f.ClusterIP == a || slices.Contains(f.LoadBalancerIPs, a) || slices.Contains(f.ExternalIPs, a) {
			all = append(all, f)
		}
	}
	if len(all) > 0 {
		f, err := r.pick(all, name)
		if err != nil {
			return err
		}
		to := netip.AddrPortFrom(a, f.Port)
		r.Frontend, r.Packet.Protocol = f, f.Protocol
		return r.sendTo(to, r.addressKind(f, to))
	}
	for _, p := range r.s.Pods {
		if name != "" && slices.Contains(p.IPs, a) {
			number, err := r.podPort(p, name)
			if err != nil {
				return err
			}
			return r.sendTo(netip.AddrPortFrom(a, number), "address")
		}
	}
	if name == "" {
		return errors.New("needs a port, ADDRESS:PORT: no Service has the address")
	}
	return fmt.Errorf("%q is not a port, and no Service or Pod has the address", name)
}
