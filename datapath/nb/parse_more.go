package nb

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/shell"
)

// create reads "create TABLE COLUMN=VALUE …", the form of tables that have no command of their own.
func (p *parser) create(a []string) (Row, error) {
	if err := count(a, 1, -1); err != nil {
		return nil, err
	}
	if p.flags.id != "" && a[0] != "QoS" {
		return nil, fmt.Errorf("--id does not belong here")
	}
	columns := map[string]string{} // still quoted
	for _, w := range a[1:] {
		column, val, found := strings.Cut(w, "=")
		if _, twice := columns[column]; !found || twice {
			return nil, fmt.Errorf("%q is not a new COLUMN=VALUE", w)
		}
		columns[column] = val
	}
	var err error
	text := func(column string) (s string) {
		if err == nil {
			if s, err = whole(columns[column]); err != nil {
				err = fmt.Errorf("%s: %w", column, err)
			}
		}
		delete(columns, column)
		return s
	}
	var row Row
	switch a[0] {
	case "Address_Set":
		r := &AddressSet{Name: text("name"), Owner: p.owner}
		if list, there := columns["addresses"]; there && err == nil {
			r.Addresses, err = set(list, ParsePrefix)
			delete(columns, "addresses")
		}
		row = r
	case "Load_Balancer_Group":
		row = &Group{Name: text("name"), Owner: p.owner}
	case "Load_Balancer":
		lb := &LoadBalancer{Name: text("name"), Owner: p.owner}
		if proto := text("protocol"); err == nil {
			lb.Protocol, err = parseProtocol(proto)
		}
		row = lb
	case "Static_MAC_Binding":
		row, err = p.macBinding(text("logical_port"), text("ip"), text("mac"), text("override_dynamic_mac"), err)
	case "QoS":
		direction, priority, match, mark := text("direction"), text("priority"), text("match"), text("action:mark")
		if err == nil && mark != "0" {
			err = fmt.Errorf("action:mark is %q: qos-add is for others than 0", mark)
		}
		if err == nil {
			row, err = p.qosRow("", direction, priority, match, 0)
		}
		p.ids[p.flags.id] = a[0]
	default:
		return nil, fmt.Errorf("unknown table %q", a[0])
	}
	if err != nil {
		return nil, err
	}
	for column := range columns {
		return nil, fmt.Errorf("unknown column %q of %s", column, a[0])
	}
	return row, nil
}

func (p *parser) macBinding(port, ip, mac, override string, err error) (Row, error) {
	if err != nil {
		return nil, err
	}
	if override != "true" {
		return nil, fmt.Errorf("override_dynamic_mac is %q, want true", override)
	}
	r := &MACBinding{Port: port, Owner: p.owner}
	if r.IP, err = netip.ParseAddr(ip); err != nil {
		return nil, err
	}
	r.MAC, err = cluster.ParseMAC(mac)
	return r, err
}

// more reads a further command of a line, which adds to the row.
func (p *parser) more(verb string, a []string) error {
	var takes flags
	if verb == "get" {
		takes.id = "x"
	}
	err := p.flags.only(takes)
	if err == nil {
		err = p.addTo(verb, a)
	}
	if err != nil {
		return fmt.Errorf("%s after %s: %w", verb, p.row.Key(), err)
	}
	return nil
}

func (p *parser) addTo(verb string, a []string) error {
	k := p.row.Key()
	switch r := p.row.(type) {
	case *QoS:
		if r.Switch != "" || verb != "add" || len(a) != 4 || a[0] != "Logical_Switch" || a[2] != "qos_rules" || p.ids[a[3]] != "QoS" {
			return fmt.Errorf("want add Logical_Switch NAME qos_rules @q, of a row without a switch")
		}
		r.Switch = a[1]
		return nil
	case *Chassis:
		if verb == "set" {
			return p.setChassis(r, a)
		}
	case *Router:
		if verb == "set" {
			return setOptions(a, k.Table, r.Name, "options", &r.Options)
		}
		return p.group(verb, a, k, &r.Groups)
	case *Switch:
		if verb == "set" {
			return setOptions(a, k.Table, r.Name, "other_config", &r.OtherConfig)
		}
		return p.group(verb, a, k, &r.Groups)
	case *RouterPort:
		switch verb {
		case "set":
			return setOptions(a, k.Table, r.Name, "options", &r.Options)
		case "lrp-set-gateway-chassis":
			if err := named(a, r.Name, 3); err != nil {
				return err
			}
			if len(a) != 3 || a[2] != "1" || a[1] == "" {
				return fmt.Errorf("want PORT CHASSIS 1")
			}
			r.Chassis = a[1]
			return nil
		}
	case *SwitchPort:
		return addToSwitchPort(r, verb, a)
	case *LoadBalancer:
		return p.addToLoadBalancer(r, verb, a)
	}
	return fmt.Errorf("unknown command")
}

func (p *parser) setChassis(r *Chassis, a []string) error {
	if len(a) < 4 || a[0] != "Chassis" || a[1] != r.Name {
		return fmt.Errorf("want Chassis %s hostname=… other_config:is-remote=true", shell.Word(r.Name))
	}
	remote := false
	for _, w := range a[2:] {
		switch s, err := parseSetting(w); {
		case err != nil:
			return err
		case s.column == "hostname" && s.key == "":
			r.Hostname = s.value
		case s == setting{"other_config", "is-remote", "true"}:
			remote = true
		default:
			return fmt.Errorf("unknown column in %q", w)
		}
	}
	if !remote {
		return fmt.Errorf("other_config:is-remote=true is missing")
	}
	return nil
}

func addToSwitchPort(r *SwitchPort, verb string, a []string) error {
	if err := named(a, r.Name, 2); err != nil {
		return err
	}
	switch verb {
	case "lsp-set-type":
		if len(a) != 2 {
			return fmt.Errorf("want PORT TYPE")
		}
		r.Type = a[1]
		return nil
	case "lsp-set-addresses":
		r.Addresses = a[1:]
		return nil
	case "lsp-set-port-security":
		r.PortSecurity = a[1:]
		return nil
	case "lsp-set-options":
		return pairs(&r.Options, a[1:])
	}
	return fmt.Errorf("unknown command")
}

func (p *parser) addToLoadBalancer(r *LoadBalancer, verb string, a []string) error {
	switch verb {
	case "lb-add":
		return vip(r, a)
	case "set":
		return setLoadBalancer(r, a)
	case "get":
		return p.get(a, TableLoadBalancer, r.Name)
	case "add":
		if len(a) != 4 || a[0] != "Load_Balancer_Group" || a[2] != "load_balancer" || p.ids[a[3]] != r.Name {
			return fmt.Errorf("want Load_Balancer_Group NAME load_balancer @lb")
		}
		r.Groups = append(r.Groups, a[1])
		return nil
	}
	return fmt.Errorf("unknown command")
}

func setLoadBalancer(r *LoadBalancer, a []string) error {
	if len(a) < 3 || a[0] != "Load_Balancer" || a[1] != r.Name {
		return fmt.Errorf("want Load_Balancer %s", shell.Word(r.Name))
	}
	for _, w := range a[2:] {
		switch s, err := parseSetting(w); {
		case err != nil:
			return err
		case s.column == "options" && s.key != "":
			put(&r.Options, s.key, s.value)
		case s.column == "selection_fields" && s.key == "" && (s.value == "ip_src" || s.value == "ipv6_src"):
			r.Affinity = true
			if s.value != r.SelectionFields()[0] {
				return fmt.Errorf("selection_fields=%s does not fit the VIPs", s.value)
			}
		default:
			return fmt.Errorf("unknown column or value in %q", w)
		}
	}
	return nil
}

// group reads the two commands that attach a load balancer group.
func (p *parser) group(verb string, a []string, k Key, groups *[]string) error {
	switch verb {
	case "get":
		if len(a) != 2 {
			return fmt.Errorf("want Load_Balancer_Group NAME")
		}
		return p.get(a, TableGroup, a[1])
	case "add":
		if len(a) != 4 || a[0] != k.Table.String() || a[1] != k.Name || a[2] != "load_balancer_group" {
			return fmt.Errorf("want %s %s load_balancer_group @g", k.Table, shell.Word(k.Name))
		}
		g, known := p.ids[a[3]]
		if !known {
			return fmt.Errorf("unknown id %q", a[3])
		}
		*groups = append(*groups, g)
		return nil
	}
	return fmt.Errorf("unknown command")
}

// get reads "--id=@x get TABLE NAME".
func (p *parser) get(a []string, t Table, name string) error {
	if len(a) != 2 || a[0] != t.String() || a[1] != name || !strings.HasPrefix(p.flags.id, "@") {
		return fmt.Errorf("want --id=@x get %s NAME", t)
	}
	p.ids[p.flags.id] = name
	return nil
}

// vip reads the arguments of lb-add.
func vip(lb *LoadBalancer, a []string) error {
	if err := count(a, 4, 4); err != nil {
		return err
	}
	if lb.Name != "" && a[0] != lb.Name {
		return fmt.Errorf("another load balancer %q in one line", a[0])
	}
	addr, err := netip.ParseAddrPort(a[1])
	if err != nil {
		return fmt.Errorf("VIP %q: %w", a[1], err)
	}
	for _, v := range lb.VIPs {
		if v.Addr == addr {
			return fmt.Errorf("%s is there twice", addr)
		}
	}
	v := VIP{Addr: addr}
	if a[2] != "" {
		if v.Backends, err = parseAll(a[2], netip.ParseAddrPort); err != nil {
			return fmt.Errorf("backends %q: %w", a[2], err)
		}
	}
	proto, err := parseProtocol(a[3])
	if err != nil {
		return err
	}
	if lb.Name != "" && proto != lb.Protocol {
		return fmt.Errorf("another protocol %q in one line", a[3])
	}
	lb.Name, lb.Protocol, lb.VIPs = a[0], proto, append(lb.VIPs, v)
	return nil
}

func (p *parser) qos(a []string) (Row, error) {
	if err := count(a, 5, 5); err != nil {
		return nil, err
	}
	text, ok := strings.CutPrefix(a[4], "mark=")
	mark, err := strconv.ParseUint(text, 10, 32)
	if !ok || err != nil || mark == 0 {
		return nil, fmt.Errorf("%q is not mark=NUMBER", a[4])
	}
	return p.qosRow(a[0], a[1], a[2], a[3], uint32(mark))
}

func (p *parser) qosRow(sw, direction, priority, match string, mark uint32) (Row, error) {
	if direction != "from-lport" {
		return nil, fmt.Errorf("unknown direction %q", direction)
	}
	n, err := parsePriority(priority)
	return &QoS{Switch: sw, Priority: n, Match: match, Mark: mark, Owner: p.owner}, err
}
