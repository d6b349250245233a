package nb

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/delta"
	"hairpin/datapath/shell"
)

// Print writes the rows, one line each, in the words of ovn-nbctl (a Chassis: of ovn-sbctl), in the order in which they
// can be made. The owner follows as a comment. A line can be given to a shell as "ovn-nbctl LINE".
func Print(s State) string {
	var b strings.Builder
	var last *Route
	for _, k := range delta.Sorted(s, Key.Compare) {
		r := s[k]
		if route, ok := r.(*Route); ok {
			// Routes of one prefix are neighbours in the order; ovn-nbctl wants to hear that the second one is meant.
			if last != nil && last.Router == route.Router && last.BySource == route.BySource && last.Prefix == route.Prefix {
				b.WriteString("--ecmp ")
			}
			last = route
		}
		b.WriteString(Line(r))
		b.WriteByte('\n')
	}
	return b.String()
}

// Line writes one row without a line end. Equal rows give equal lines.
func Line(r Row) string {
	var p printer
	switch r := r.(type) {
	case *Global:
		p.cmd("set", "NB_Global", ".", "name="+value(r.Name))
		p.settings("options", r.Options)
	case *Chassis:
		p.cmd("chassis-add", r.Name, "geneve", r.IP.String())
		p.cmd("set", "Chassis", r.Name, "hostname="+value(r.Hostname), "other_config:is-remote=true")
	case *AddressSet:
		p.cmd("create", "Address_Set", "name="+value(r.Name))
		if len(r.Addresses) > 0 {
			p.add("addresses=" + addresses(r.Addresses))
		}
	case *Group:
		p.cmd("create", "Load_Balancer_Group", "name="+value(r.Name))
	case *Router:
		p.cmd("lr-add", r.Name)
		p.set("Logical_Router", r.Name, "options", r.Options)
		p.groups("Logical_Router", r.Name, r.Groups)
	case *RouterPort:
		p.routerPort(r)
	case *Switch:
		p.cmd("ls-add", r.Name)
		p.set("Logical_Switch", r.Name, "other_config", r.OtherConfig)
		p.groups("Logical_Switch", r.Name, r.Groups)
	case *SwitchPort:
		p.switchPort(r)
	case *MACBinding:
		p.cmd("create", "Static_MAC_Binding", "logical_port="+value(r.Port), "ip="+value(r.IP.String()), "mac="+value(r.MAC.String()),
			"override_dynamic_mac=true")
	case *QoS:
		p.qos(r)
	case *Route:
		p.route(r)
	case *Policy:
		p.policy(r)
	case *NAT:
		p.nat(r)
	case *LoadBalancer:
		p.loadBalancer(r)
	}
	if owner := r.Why(); owner != (cluster.Owner{}) {
		p.b.WriteString(" # " + owner.String())
	}
	return p.b.String()
}

// printer writes commands that are chained with "--".
type printer struct{ b strings.Builder }

// cmd begins a command.
func (p *printer) cmd(words ...string) {
	if p.b.Len() > 0 {
		p.b.WriteString(" --")
	}
	p.add(words...)
}

// add continues the command.
func (p *printer) add(words ...string) {
	for _, w := range words {
		if p.b.Len() > 0 {
			p.b.WriteByte(' ')
		}
		p.b.WriteString(shell.Word(w))
	}
}

// settings adds column:key=value for each option.
func (p *printer) settings(column string, m map[string]string) {
	for _, k := range delta.Keys(m) {
		p.add(column + ":" + value(k) + "=" + value(m[k]))
	}
}

// pairs adds key=value for each option, for the commands that take them without database quoting.
func (p *printer) pairs(m map[string]string) {
	for _, k := range delta.Keys(m) {
		p.add(k + "=" + m[k])
	}
}

func (p *printer) set(table, name, column string, m map[string]string) {
	if len(m) > 0 {
		p.cmd("set", table, name)
		p.settings(column, m)
	}
}

// groups attaches load balancer groups. A reference is an UUID for ovn-nbctl; "get" gives a row's UUID a name.
func (p *printer) groups(table, name string, groups []string) {
	for i, g := range slices.Sorted(slices.Values(groups)) {
		id := fmt.Sprintf("@g%d", i)
		p.cmd("--id="+id, "get", "Load_Balancer_Group", g)
		p.cmd("add", table, name, "load_balancer_group", id)
	}
}

func (p *printer) routerPort(r *RouterPort) {
	p.cmd("lrp-add", r.Router, r.Name, r.MAC.String())
	for _, n := range slices.SortedFunc(slices.Values(r.Networks), netip.Prefix.Compare) {
		p.add(n.String())
	}
	if r.Chassis != "" {
		p.cmd("lrp-set-gateway-chassis", r.Name, r.Chassis, "1")
	}
	p.set("Logical_Router_Port", r.Name, "options", r.Options)
}

func (p *printer) switchPort(r *SwitchPort) {
	p.cmd("lsp-add", r.Switch, r.Name)
	if r.Type != "" {
		p.cmd("lsp-set-type", r.Name, r.Type)
	}
	if len(r.Addresses) > 0 {
		p.cmd("lsp-set-addresses", r.Name)
		p.add(slices.Sorted(slices.Values(r.Addresses))...)
	}
	if len(r.PortSecurity) > 0 {
		p.cmd("lsp-set-port-security", r.Name)
		p.add(slices.Sorted(slices.Values(r.PortSecurity))...)
	}
	if len(r.Options) > 0 {
		p.cmd("lsp-set-options", r.Name)
		p.pairs(r.Options)
	}
}

// qos knows that qos-add takes no mark 0.
func (p *printer) qos(r *QoS) {
	if r.Mark != 0 {
		p.cmd("qos-add", r.Switch, "from-lport", fmt.Sprint(r.Priority), r.Match, fmt.Sprintf("mark=%d", r.Mark))
		return
	}
	p.cmd("--id=@q", "create", "QoS", "direction=from-lport", fmt.Sprintf("priority=%d", r.Priority), "match="+value(r.Match), "action:mark=0")
	p.cmd("add", "Logical_Switch", r.Switch, "qos_rules", "@q")
}

func (p *printer) route(r *Route) {
	if r.BySource {
		p.cmd("--policy=src-ip")
		p.add("lr-route-add")
	} else {
		p.cmd("lr-route-add")
	}
	p.add(r.Router, address(r.Prefix), r.NextHop.String())
	if r.OutPort != "" {
		p.add(r.OutPort)
	}
}

func (p *printer) policy(r *Policy) {
	p.cmd("lr-policy-add", r.Router, fmt.Sprint(r.Priority), r.Match, string(r.Action))
	if len(r.NextHops) > 0 {
		p.add(joined(slices.SortedFunc(slices.Values(r.NextHops), netip.Addr.Compare)))
	}
	p.pairs(r.Options)
}

func (p *printer) nat(r *NAT) {
	var flags []string
	if r.Match != "" {
		flags = append(flags, "--match="+r.Match)
	}
	if r.PortRange != "" {
		flags = append(flags, "--portrange")
	}
	p.cmd(append(flags, "lr-nat-add", r.Router, string(r.Type), r.External.String(), address(r.Logical))...)
	if r.PortRange != "" {
		p.add(r.PortRange)
	}
}

func (p *printer) loadBalancer(r *LoadBalancer) {
	for _, v := range sortedVIPs(r.VIPs) {
		p.cmd("lb-add", r.Name, v.Addr.String(), joined(v.Backends), r.Protocol.String())
	}
	if len(r.VIPs) == 0 {
		p.cmd("create", "Load_Balancer", "name="+value(r.Name), "protocol="+r.Protocol.String())
	}
	if len(r.Options) > 0 || r.Affinity {
		p.cmd("set", "Load_Balancer", r.Name)
		p.settings("options", r.Options)
		if r.Affinity {
			p.add("selection_fields=" + strings.Join(r.SelectionFields(), ","))
		}
	}
	if len(r.Groups) > 0 {
		p.cmd("--id=@lb", "get", "Load_Balancer", r.Name)
		for _, g := range slices.Sorted(slices.Values(r.Groups)) {
			p.cmd("add", "Load_Balancer_Group", g, "load_balancer", "@lb")
		}
	}
}

// SelectionFields gives the column selection_fields: what picks the backend of a new connection. Nil without Affinity:
// then OVN takes the whole 5-tuple.
func (r *LoadBalancer) SelectionFields() []string {
	if !r.Affinity {
		return nil
	}
	for _, v := range r.VIPs {
		if v.Addr.Addr().Is6() {
			return []string{"ipv6_src"}
		}
	}
	return []string{"ip_src"}
}

// address writes a full-length prefix as a plain address, as ovn-nbctl does.
func address(p netip.Prefix) string {
	if p.IsValid() && p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func addresses(list []netip.Prefix) string {
	words := make([]string, 0, len(list))
	for _, p := range slices.SortedFunc(slices.Values(list), netip.Prefix.Compare) {
		words = append(words, value(address(p)))
	}
	return strings.Join(words, ",")
}

func joined[T interface {
	comparable
	fmt.Stringer
}](list []T) string {
	words := make([]string, len(list))
	for i, x := range list {
		words[i] = x.String()
	}
	return strings.Join(words, ",")
}
