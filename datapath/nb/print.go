package nb

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/shell"
	"hairpin/delta"
)

// Print writes the rows, one per line, in the syntax of ovn-nbctl (a Chassis: of ovn-sbctl), in the
// order in which they can be created. The owner follows as a comment. A shell can run a line as
// "ovn-nbctl LINE".
func Print(s State) string {
	var b strings.Builder
	var last *Route
	for _, k := range delta.Sorted(s, Key.Compare) {
		r := s[k]
		if route, ok := r.(*Route); ok {
			// Routes of one prefix are adjacent in the order; ovn-nbctl needs an option to accept
			// the second one.
			if last != nil && last.Router == route.Router && last.BySource == route.BySource &&
				last.Prefix == route.Prefix {
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
	r.print(&p)
	if owner := OwnerOf(r); owner != (cluster.Owner{}) {
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

// groups attaches load balancer groups. ovn-nbctl references rows by UUID; "get" gives a row's UUID
// a name.
func (p *printer) groups(table, name string, groups []string) {
	for i, g := range sorted(groups, cmp.Compare) {
		id := fmt.Sprintf("@g%d", i)
		p.cmd("--id="+id, "get", "Load_Balancer_Group", g)
		p.cmd("add", table, name, "load_balancer_group", id)
	}
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
	for _, p := range sorted(list, netip.Prefix.Compare) {
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
