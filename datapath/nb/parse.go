package nb

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/shell"
)

// Parse reads what Print wrote; empty lines and lines of a comment only are skipped. A word that is not known, a row
// that is there twice and an address that is none are errors that tell the line.
func Parse(text string) (State, error) {
	s := State{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		r, err := ParseLine(strings.TrimSuffix(line, "\n"))
		switch {
		case err != nil:
			return nil, fmt.Errorf("line %d: %w", n, err)
		case r == nil:
			continue
		}
		if _, twice := s[r.Key()]; twice {
			return nil, fmt.Errorf("line %d: %s is there twice", n, r.Key())
		}
		s.Add(r)
	}
	return s, nil
}

// ParseLine reads one row, or nothing from an empty line.
func ParseLine(line string) (Row, error) {
	list, comment, err := shell.Words(line)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	p := parser{ids: map[string]string{}, owner: cluster.ParseOwner(comment)}
	for len(list) > 0 {
		end := slices.Index(list, "--")
		if end < 0 {
			end = len(list)
		}
		if err := p.command(list[:end]); err != nil {
			return nil, err
		}
		if end == len(list) {
			break
		}
		list = list[end+1:]
		if len(list) == 0 {
			return nil, fmt.Errorf("the command after -- is missing")
		}
	}
	if p.row == nil {
		return nil, fmt.Errorf("%q makes no row", line)
	}
	if r, ok := p.row.(*QoS); ok && r.Switch == "" {
		return nil, fmt.Errorf("%q names no switch", line)
	}
	return p.row, nil
}

// parser reads the commands of one row.
type parser struct {
	row   Row
	owner cluster.Owner
	ids   map[string]string // of "--id=@g get TABLE NAME": @g to "TABLE NAME"
	flags flags
}

// flags are the options that stand before a command; what a command does not take is an error.
type flags struct {
	policy, match, id string
	hasMatch          bool
	portrange, ecmp   bool
}

func (p *parser) command(list []string) error {
	p.flags = flags{}
	for len(list) > 0 && strings.HasPrefix(list[0], "--") {
		if err := p.flag(list[0]); err != nil {
			return err
		}
		list = list[1:]
	}
	if len(list) == 0 {
		return fmt.Errorf("a command is missing")
	}
	verb, args := list[0], list[1:]
	if p.row != nil {
		return p.more(verb, args)
	}
	if err := p.first(verb, args); err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	return nil
}

func (p *parser) flag(word string) error {
	name, val, _ := strings.Cut(word, "=")
	switch name {
	case "--policy":
		p.flags.policy = val
	case "--match":
		p.flags.match, p.flags.hasMatch = val, true
	case "--id":
		p.flags.id = val
	case "--portrange":
		p.flags.portrange = true
	case "--ecmp":
		p.flags.ecmp = true
	default:
		return fmt.Errorf("unknown option %s", word)
	}
	return nil
}

// only refuses the flags that a command does not take.
func (f flags) only(ok flags) error {
	switch {
	case f.policy != "" && ok.policy == "":
		return fmt.Errorf("--policy does not belong here")
	case f.hasMatch && !ok.hasMatch:
		return fmt.Errorf("--match does not belong here")
	case f.id != "" && ok.id == "":
		return fmt.Errorf("--id does not belong here")
	case f.portrange && !ok.portrange:
		return fmt.Errorf("--portrange does not belong here")
	case f.ecmp && !ok.ecmp:
		return fmt.Errorf("--ecmp does not belong here")
	}
	return nil
}

// first reads the command that makes the row.
func (p *parser) first(verb string, a []string) (err error) {
	var takes flags
	switch verb {
	case "lr-route-add":
		takes = flags{policy: "x", ecmp: true}
	case "lr-nat-add":
		takes = flags{hasMatch: true, portrange: true}
	case "create":
		takes = flags{id: "x"}
	}
	if err := p.flags.only(takes); err != nil {
		return err
	}
	switch verb {
	case "set":
		p.row, err = p.global(a)
	case "create":
		p.row, err = p.create(a)
	case "chassis-add":
		p.row, err = p.chassis(a)
	case "lr-add":
		if err = count(a, 1, 1); err == nil {
			p.row = &Router{Name: a[0], Owner: p.owner}
		}
	case "ls-add":
		if err = count(a, 1, 1); err == nil {
			p.row = &Switch{Name: a[0], Owner: p.owner}
		}
	case "lrp-add":
		p.row, err = p.routerPort(a)
	case "lsp-add":
		if err = count(a, 2, 2); err == nil {
			p.row = &SwitchPort{Switch: a[0], Name: a[1], Owner: p.owner}
		}
	case "qos-add":
		p.row, err = p.qos(a)
	case "lr-route-add":
		p.row, err = p.route(a)
	case "lr-policy-add":
		p.row, err = p.policy(a)
	case "lr-nat-add":
		p.row, err = p.nat(a)
	case "lb-add":
		lb := &LoadBalancer{Owner: p.owner}
		if err = vip(lb, a); err == nil {
			p.row = lb
		}
	default:
		err = fmt.Errorf("unknown command")
	}
	if err != nil {
		p.row = nil // not a typed nil
	}
	return err
}

func (p *parser) global(a []string) (Row, error) {
	if err := count(a, 3, -1); err != nil {
		return nil, err
	}
	if a[0] != "NB_Global" || a[1] != "." {
		return nil, fmt.Errorf(`want "NB_Global .", have "%s %s"`, a[0], a[1])
	}
	r := &Global{Owner: p.owner}
	for _, w := range a[2:] {
		switch s, err := parseSetting(w); {
		case err != nil:
			return nil, err
		case s.column == "name" && s.key == "":
			r.Name = s.value
		case s.column == "options" && s.key != "":
			put(&r.Options, s.key, s.value)
		default:
			return nil, fmt.Errorf("unknown column in %q", w)
		}
	}
	return r, nil
}

func (p *parser) chassis(a []string) (Row, error) {
	if err := count(a, 3, 3); err != nil {
		return nil, err
	}
	if a[1] != "geneve" {
		return nil, fmt.Errorf("unknown encapsulation %q", a[1])
	}
	ip, err := netip.ParseAddr(a[2])
	return &Chassis{Name: a[0], IP: ip, Owner: p.owner}, err
}

func (p *parser) routerPort(a []string) (Row, error) {
	if err := count(a, 3, -1); err != nil {
		return nil, err
	}
	r := &RouterPort{Router: a[0], Name: a[1], Owner: p.owner}
	var err error
	if r.MAC, err = cluster.ParseMAC(a[2]); err != nil {
		return nil, err
	}
	for _, w := range a[3:] {
		n, err := netip.ParsePrefix(w)
		if err != nil {
			return nil, err
		}
		r.Networks = append(r.Networks, n)
	}
	return r, nil
}

func (p *parser) route(a []string) (Row, error) {
	if err := count(a, 3, 4); err != nil {
		return nil, err
	}
	r := &Route{Router: a[0], Owner: p.owner}
	var err error
	if r.Prefix, err = ParsePrefix(a[1]); err != nil {
		return nil, err
	}
	if r.NextHop, err = netip.ParseAddr(a[2]); err != nil {
		return nil, err
	}
	if len(a) == 4 {
		r.OutPort = a[3]
	}
	switch p.flags.policy {
	case "", "dst-ip":
	case "src-ip":
		r.BySource = true
	default:
		return nil, fmt.Errorf("unknown policy %q", p.flags.policy)
	}
	return r, nil
}

func (p *parser) policy(a []string) (Row, error) {
	if err := count(a, 4, -1); err != nil {
		return nil, err
	}
	r := &Policy{Router: a[0], Match: a[2], Action: Action(a[3]), Owner: p.owner}
	var err error
	if r.Priority, err = parsePriority(a[1]); err != nil {
		return nil, err
	}
	switch r.Action {
	case Allow, Drop, Reroute:
	default:
		return nil, fmt.Errorf("unknown action %q", a[3])
	}
	rest := a[4:]
	if len(rest) > 0 && !strings.Contains(rest[0], "=") {
		if r.NextHops, err = parseAll(rest[0], netip.ParseAddr); err != nil {
			return nil, err
		}
		rest = rest[1:]
	}
	return r, pairs(&r.Options, rest)
}

func (p *parser) nat(a []string) (Row, error) {
	n := 4
	if p.flags.portrange {
		n = 5
	}
	if err := count(a, n, n); err != nil {
		return nil, err
	}
	r := &NAT{Router: a[0], Type: NATType(a[1]), Match: p.flags.match, Owner: p.owner}
	switch r.Type {
	case SNAT, DNATAndSNAT:
	default:
		return nil, fmt.Errorf("unknown type %q", a[1])
	}
	var err error
	if r.External, err = netip.ParseAddr(a[2]); err != nil {
		return nil, err
	}
	if r.Logical, err = ParsePrefix(a[3]); err != nil {
		return nil, err
	}
	if p.flags.portrange {
		r.PortRange = a[4]
	}
	return r, nil
}
