package explain

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"hairpin/cluster"
	"hairpin/policy"
	"hairpin/walk/packet"
)

// palette holds the terminal's escape sequences for parts of the text; without colour all are
// empty.
type palette struct{ place, rule, changed, entry, good, bad, faint, off string }

func colours(on bool) palette {
	if !on {
		return palette{}
	}
	return palette{place: "\x1b[1m", rule: "\x1b[36m", changed: "\x1b[33m", entry: "\x1b[35m", good: "\x1b[32;1m",
		bad: "\x1b[31;1m", faint: "\x1b[2m", off: "\x1b[0m"}
}

// Form selects what Text has. The zero Form has the verdict, the reason for it, the endpoints, the
// key steps, and the decisions of policies.
type Form struct {
	Colour bool
	All    bool // all steps with their rules, packets and conntrack entries, and the hosts' connections
	Costs  bool // conntrack passes and datapath lookups
}

// Text returns the walk for a terminal.
func (e *Explanation) Text(f Form) string {
	var b strings.Builder
	c := colours(f.Colour)
	mark := c.bad
	if e.Good() {
		mark = c.good
	}
	verdict := mark + e.Sentence() + c.off + "\n"
	fmt.Fprintf(&b, "%sWHY   %s\n\n", verdict, e.Why().Text)
	e.head(&b)
	if f.All {
		e.allSteps(&b, c)
	} else {
		e.keys(&b, c)
	}
	e.policies(&b, c)
	if costs := e.costs(); f.Costs && len(costs) > 0 {
		fmt.Fprintf(&b, "\n%s\n", strings.Join(costs, "\n"))
	}
	if f.All { // the first line may have scrolled off the terminal
		fmt.Fprintf(&b, "\n%s", verdict)
	}
	if e.Proof != nil {
		fmt.Fprintf(&b, "\n%s", e.Proof)
	}
	return b.String()
}

func (e *Explanation) allSteps(b *strings.Builder, c palette) {
	fmt.Fprintf(b, "\n%sFORWARD%s\n", c.place, c.off)
	steps(b, c, e.Trace.Sent, e.Trace.Forward, e.Proof.forward())
	if len(e.Trace.Reply) > 0 {
		fmt.Fprintf(b, "\n%sREPLY%s\n", c.place, c.off)
		steps(b, c, e.replied(), e.Trace.Reply, e.Proof.reply())
	}
	if len(e.HostConnections) > 0 {
		b.WriteByte('\n')
		e.hostConnections(b)
	}
}

// policies writes the decisions of policies.
func (e *Explanation) policies(b *strings.Builder, c palette) {
	if len(e.Policies) > 0 {
		fmt.Fprintf(b, "\n%sPOLICIES%s\n", c.place, c.off)
	}
	for i := range e.Policies {
		d := &e.Policies[i]
		mark := c.bad
		if d.Accepted {
			mark = c.good
		}
		fmt.Fprintf(b, "  %s%s%s\n", mark, d, c.off)
		for _, line := range d.Details() {
			fmt.Fprintf(b, "    %s\n", line)
		}
	}
}

// costs lists the costs of the packets, a line for each packet that was sent.
func (e *Explanation) costs() (lines []string) {
	for _, x := range []struct {
		packet string
		cost   packet.Cost
	}{{"First packet", e.Trace.Costs.First}, {"Later packet", e.Trace.Costs.Later}, {"Reply", e.Trace.Costs.Reply}} {
		if x.cost != (packet.Cost{}) {
			lines = append(lines, x.packet+": "+x.cost.String())
		}
	}
	return lines
}

// head writes the resolved question and the endpoints.
func (e *Explanation) head(b *strings.Builder) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "FROM\t%s\n", e.Trace.From)
	to := e.Question.To
	if e.Destination != "address "+to {
		to += ", " + e.Destination
	}
	fmt.Fprintf(t, "TO\t%s\n", to)
	fmt.Fprintf(t, "SENT\t%s\n", e.Trace.Sent)
	_ = t.Flush() // a strings.Builder returns no errors
	if e.Service == "" {
		return
	}
	b.WriteByte('\n')
	if len(e.Endpoints) == 0 {
		fmt.Fprintf(b, "Service %s has no endpoint.\n", e.Service)
		return
	}
	fmt.Fprintf(t, "ENDPOINT OF %s\tTARGET\tNODE\tSTATE\tTHIS PACKET\n", e.Service)
	for _, x := range e.Endpoints {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", x.Addr, x.Owner, x.Node, x.State, x.Decision())
	}
	_ = t.Flush()
}

// Decision returns the load balancer's decision about the endpoint.
func (x *Endpoint) Decision() string {
	switch {
	case x.Chosen:
		return "followed"
	case x.Possible:
		return "possible"
	}
	return "excluded"
}

// replied returns the reply as the receiver sent it.
func (e *Explanation) replied() packet.Packet { return e.Trace.Verdict.Seen.Reply() }

func steps(b *strings.Builder, c palette, before packet.Packet, list []packet.Step, seen []Evidence) {
	for i := range list {
		s := &list[i]
		fmt.Fprintf(b, "%3d %s%s%s", i+1, c.place, s.At(), c.off)
		if s.Why != (cluster.Owner{}) {
			fmt.Fprintf(b, "  %s[%s]%s", c.faint, s.Why, c.off)
		}
		b.WriteByte('\n')
		if s.Rule != "" {
			fmt.Fprintf(b, "    %s%s%s\n", c.rule, s.Rule, c.off)
		}
		fmt.Fprintf(b, "    -> %s\n", s.Did)
		if words := s.OneOf(); words != "" {
			fmt.Fprintf(b, "    one of %s\n", words)
		}
		if change := changes(before, s.After); change != "" {
			fmt.Fprintf(b, "    %s%s%s\n", c.changed, change, c.off)
		}
		if s.Entry != "" {
			fmt.Fprintf(b, "    %sCT %s%s\n", c.entry, s.Entry, c.off)
		}
		if i < len(seen) && seen[i].Known {
			mark := c.bad
			if seen[i].Seen {
				mark = c.good
			}
			fmt.Fprintf(b, "    %s%s%s\n", mark, seen[i].line(), c.off)
		}
		before = s.After
	}
}

// changes returns the packet before and after a step, empty if it did not change.
func changes(before, after packet.Packet) string {
	a, b := bare(before), bare(after)
	if a == b {
		return ""
	}
	if !before.Dst.IsValid() {
		return after.String()
	}
	return a.String() + "  =>  " + strings.TrimPrefix(b.String(), b.Protocol.String()+" ")
}

// bare returns a packet without its MACs: the text of a step has the MACs that it changes.
func bare(p packet.Packet) packet.Packet {
	p.EthSrc, p.EthDst = cluster.MAC{}, cluster.MAC{}
	return p
}

// hostConnections writes the connections that the hosts' kernels see. It marks those that are parts
// of one connection.
func (e *Explanation) hostConnections(b *strings.Builder) {
	byNode := map[string]int{}
	var nodes []string
	for _, x := range e.HostConnections {
		if byNode[x.Node]++; byNode[x.Node] == 1 {
			nodes = append(nodes, x.Node)
		}
	}
	for _, n := range nodes {
		switch byNode[n] {
		case 1:
			fmt.Fprintf(b, "Host %s sees one connection:\n", n)
		default:
			fmt.Fprintf(b, "Host %s sees %s connections, which are parts of one:\n", n, count(byNode[n]))
		}
		k := 0
		for _, x := range e.HostConnections {
			if x.Node == n {
				k++
				fmt.Fprintf(b, "  %d. %s > %s\n", k, x.From, x.To)
			}
		}
	}
}

func count(n int) string {
	if n == 2 {
		return "two"
	}
	return strconv.Itoa(n)
}

// Sentence returns the verdict.
func (e *Explanation) Sentence() string {
	v := e.Trace.Verdict
	switch {
	case e.Failure != nil:
		return "Unknown: " + e.Failure.Error() + "."
	case v.Rejected:
		s := upper(v.Reason)
		if v.AnswerReason != "" {
			s += "; " + v.AnswerReason
		}
		return s + "."
	case v.Flooded:
		return upper(v.Reason) + "."
	case !v.Delivered:
		return "Not delivered: " + v.Reason + e.denial() + "."
	}
	s := upper(v.Reason) + ", which sees " + v.Seen.Source().String()
	if v.Seen.Src == e.Trace.Sent.Src {
		s += " (the sender's own address)"
	}
	if v.AnswerReason != "" {
		s += "; " + v.AnswerReason
	}
	return s + "."
}

// denial names the rule of the policy that drops the packet, for the end of a sentence; empty if
// policies do not drop it.
func (e *Explanation) denial() string {
	n := len(e.Policies)
	if e.Trace.Verdict.Cause != packet.ByPolicies || n == 0 || e.Policies[n-1].Accepted {
		return ""
	}
	d := &e.Policies[n-1]
	if d.Reason != policy.Isolated {
		return fmt.Sprintf(", rule %d", d.Rule+1)
	}
	return "; " + d.IsolatedBy()
}

func upper(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
