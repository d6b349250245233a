// Package trace runs ofproto/trace of Open vSwitch for the packets of a walk, and compares its
// output with the walk.
package trace

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/walk"
	"hairpin/walk/openflow"
	"hairpin/walk/packet"
)

// Command returns the command for a visit: the packet as it entered a port of a bridge, and its
// conntrack states.
func Command(bridge, port string, v walk.Visit, more ...string) string {
	// the hash by which a group selects a bucket; without it, a trace ends at a group
	match := []string{"in_port=" + port, words(v.In), "dp_hash=1"}
	if match = append(match, more...); v.In.Mark != 0 {
		match = append(match, fmt.Sprintf("pkt_mark=%d", v.In.Mark))
	}
	command := "ovs-appctl ofproto/trace " + bridge + " '" + strings.Join(match, ",") + "'"
	for _, p := range v.Passes {
		command += " --ct-next '" + ctState(p.State) + "'"
	}
	return command
}

// words returns the match of a packet in the syntax of ovs-ofctl.
func words(p packet.Packet) string {
	source, dest, kind := "nw_src", "nw_dst", p.Protocol.String()
	if p.Dst.Is6() {
		source, dest, kind = "ipv6_src", "ipv6_dst", kind+"6"
	}
	return fmt.Sprintf("%s,dl_src=%s,dl_dst=%s,%s=%s,%s=%s,%s_src=%d,%s_dst=%d,nw_ttl=64", kind, Ethernet(p.EthSrc),
		Ethernet(p.EthDst),
		source, p.Src, dest, p.Dst, p.Protocol, p.SrcPort, p.Protocol, p.DstPort)
}

// Ethernet returns a MAC address as text, and a fixed one for an external machine.
func Ethernet(m cluster.MAC) string {
	if m == (cluster.MAC{}) {
		return "02:00:00:00:00:99"
	}
	return m.String()
}

func ctState(b flow.CTBits) string {
	words := []string{"trk"}
	for _, x := range []struct {
		bit  flow.CTBits
		word string
	}{{flow.CTNew, "new"}, {flow.CTEst, "est"}, {flow.CTRpl, "rpl"}, {flow.CTSnat, "snat"}, {flow.CTDnat, "dnat"}} {
		if b&x.bit != 0 {
			words = append(words, x.word)
		}
	}
	return strings.Join(words, ",")
}

var (
	onBridge  = regexp.MustCompile(`^ *bridge\("(.*)"\)$`)
	flowLine  = regexp.MustCompile(`^ *(\d+)\. (?:(.*), )?priority (\d+)(?:, cookie (0x[0-9a-f]+))?$`)
	unmatched = regexp.MustCompile(`^ *\d+\. No match\.$`)
	resumed   = regexp.MustCompile(`^recirc\(0x[0-9a-f]+\) - resume conntrack`)
	modified  = regexp.MustCompile(`^ Modified flow: (.*)$`)
	portWords = regexp.MustCompile(`\bin_port=(\d+)`)
	outputTo  = regexp.MustCompile(`^\s+output:(\d+)$`)
	backOut   = regexp.MustCompile(`^\s+IN_PORT$`)
	cameBy    = regexp.MustCompile(`^Flow: .*\bin_port=(\d+),`)
)

// brackets removes the brackets of IPv6 addresses in some lines of the tool.
var brackets = strings.NewReplacer("[", "", "]", "")

// Trace is the output of ofproto/trace for one bridge, until the packet leaves it.
type Trace struct {
	Flows    []string // as ovs-ofctl shows them, without actions
	Resumes  int
	Modified []string // after each conntrack that translates
	Left     string   // the bridge to which the packet left, "" if none
	Outputs  []string // names of ports
	Reject   bool
	Lost     bool // a table had no flow for it
}

// Parse reads the output for a bridge; name returns the name of a port number, or "".
func Parse(bridge, out string, name func(number string) string) Trace {
	var t Trace
	in := ""
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		if m := onBridge.FindStringSubmatch(line); m != nil {
			if m[1] != bridge {
				t.Left = m[1]
				return t
			}
			continue
		}
		if resumed.MatchString(line) {
			t.Resumes++
		}
		if m := modified.FindStringSubmatch(line); m != nil {
			t.Modified = append(t.Modified, brackets.Replace(m[1]))
		}
		if m := outputTo.FindStringSubmatch(line); m != nil {
			t.Outputs = append(t.Outputs, name(m[1]))
		}
		if m := cameBy.FindStringSubmatch(line); m != nil {
			in = name(m[1])
		}
		if backOut.MatchString(line) {
			t.Outputs = append(t.Outputs, in)
		}
		t.Reject = t.Reject || strings.Contains(line, "controller(") || strings.Contains(line, "userdata=")
		t.Lost = t.Lost || unmatched.MatchString(line)
		if m := flowLine.FindStringSubmatch(line); m != nil {
			match := portWords.ReplaceAllStringFunc(m[2], func(w string) string {
				if known := name(strings.TrimPrefix(w, "in_port=")); known != "" {
					return `in_port="` + known + `"`
				}
				return "in_port=LOCAL"
			})
			t.Flows = append(t.Flows, strings.TrimSuffix(fmt.Sprintf("cookie=%s,table=%s,priority=%s,%s", m[4], m[1],
				m[3], match), ","))
		}
	}
	return t
}

// Met checks, for a bridge of Hairpin, that the trace has the flows of the walk, each with its
// cookie, and as many conntrack passes.
func (t *Trace) Met(v walk.Visit) error {
	var want []string
	lost := false
	for _, s := range v.Steps {
		rule, _, _ := strings.Cut(s.Rule, " actions=")
		switch {
		case rule == openflow.NoFlow:
			lost = true
		case s.Stage != "geneve" && !strings.HasPrefix(rule, "group_id="): // a flow leads there
			want = append(want, rule)
		}
	}
	if got, want := keysOf(t.Flows), keysOf(want); !slices.Equal(got, want) {
		return fmt.Errorf("the flows are\n  %s\nnot\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	if t.Lost != lost {
		return fmt.Errorf("a table has no flow for it: %t, by the walk %t", t.Lost, lost)
	}
	return t.Passed(v)
}

// keysOf converts flows to one form, whichever program printed them.
func keysOf(list []string) []string {
	var keys []string
	for _, text := range list {
		f, err := flow.ParseFlow(text + " actions=drop")
		if err != nil {
			keys = append(keys, text+": "+err.Error())
			continue
		}
		keys = append(keys, f.String())
	}
	return keys
}

// Passed checks that the trace has as many conntrack passes as the walk.
func (t *Trace) Passed(v walk.Visit) error {
	if t.Resumes != len(v.Passes) {
		return fmt.Errorf("the packet is looked up again %d times, the walk says %d", t.Resumes, len(v.Passes))
	}
	return nil
}

// Made checks that each translated packet of the trace is one of the walk.
func (t *Trace) Made(v walk.Visit) error {
	for _, m := range t.Modified {
		want := func(p packet.Pass) bool { return packetWords(p.After) == m }
		if m != "" && !slices.ContainsFunc(v.Passes, want) && packetWords(v.In) != m {
			last := packet.Packet{}
			if n := len(v.Passes); n > 0 {
				last = v.Passes[n-1].After
			}
			return fmt.Errorf("it makes the packet %s, the walk at last %s", m, packetWords(last))
		}
	}
	return nil
}

// packetWords returns a packet in the form of "Modified flow".
func packetWords(p packet.Packet) string {
	source, dest := "nw_src", "nw_dst"
	if p.Dst.Is6() {
		source, dest = "ipv6_src", "ipv6_dst"
	}
	return fmt.Sprintf("%s=%s,tp_src=%d,%s=%s,tp_dst=%d", source, p.Src, p.SrcPort, dest, p.Dst, p.DstPort)
}
