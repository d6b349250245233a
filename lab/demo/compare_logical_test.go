package demo

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/lab/trace"
	"hairpin/walk"
	"hairpin/walk/packet"
)

// logical adds what ovn-trace must show for each visit of OVN on the path to the server.
func (c *comparison) logical(about string, tr walk.Trace) {
	for _, v := range tr.ForwardVisits {
		if !v.OVN {
			continue
		}
		p, ip := v.In, "ip4"
		if p.Dst.Is6() {
			ip = "ip6"
		}
		flow := fmt.Sprintf(`inport=="%s" && eth.src==%s && eth.dst==%s && %s.src==%s && %s.dst==%s && ip.ttl==64 && %s.src==%d && %s.dst==%d`,
			v.Port, trace.Ethernet(p.EthSrc), trace.Ethernet(p.EthDst), ip, p.Src, ip, p.Dst, p.Protocol, p.SrcPort,
			p.Protocol, p.DstPort)
		command := "ovn-trace --no-leader-only"
		for range 8 {
			command += " --ct=new"
		}
		for _, s := range v.Steps {
			// Only for routers: a switch's first conntrack lookup would consume it.
			if chooses(&s) && strings.HasSuffix(s.Stage, " lr_in_dnat") {
				command += fmt.Sprintf(" --lb-dst='%s:%d'", bracketed(s.After), s.After.DstPort)
			}
		}
		c.note(v.Node, question{"ovn-trace", about, command + " '" + flow + "'",
			func(out string) error { return checkLogical(v, out) }})
	}
}

// chooses reports whether a step chose one of several endpoints.
func chooses(s *packet.Step) bool { return len(s.Choices) > 1 && s.Choices[0].Port() != 0 }

func bracketed(p packet.Packet) string {
	if p.Dst.Is6() {
		return "[" + p.Dst.String() + "]"
	}
	return p.Dst.String()
}

// stage is a logical flow that ovn-trace met, with the actions that it shows.
type stage struct{ dp, name, priority, text string }

var (
	dpHeader  = regexp.MustCompile(`^ *(?:ingress|egress)\(dp="([^"]+)"`)
	stageLine = regexp.MustCompile(`^ *\d+\. (l[sr]_\w+) \([^)]*\): (.*), priority (\d+), uuid`)
	leaves    = regexp.MustCompile(`/\* output to "([^"]+)"`)
	resolving = regexp.MustCompile(`^( *)(arp|nd_ns)$`)
	toBackend = regexp.MustCompile(`ct_lb(?:_mark)?\(backends=([^;)]+)`)
	toSource  = regexp.MustCompile(`ct_snat(?:_in_czone)?\(([0-9a-f.:]+)[,)]`)
)

// parseLogical reads ovn-trace --detailed. It leaves out a router's requests for its next hop's
// MAC, because ovn-trace does not know static MAC bindings.
func parseLogical(out string) (stages []stage, way []string, left string) {
	dp, skip := "", -1
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		indent := len(line) - len(strings.TrimLeft(line, " "))
		if skip >= 0 {
			if indent > skip || strings.TrimSpace(line) == "" || strings.HasPrefix(strings.TrimSpace(line), "---") {
				continue
			}
			skip = -1
		}
		if m := resolving.FindStringSubmatch(line); m != nil {
			skip = len(m[1])
			continue
		}
		if m := dpHeader.FindStringSubmatch(line); m != nil {
			if dp = m[1]; len(way) == 0 || way[len(way)-1] != dp {
				way = append(way, dp)
			}
			continue
		}
		if m := stageLine.FindStringSubmatch(line); m != nil {
			stages = append(stages, stage{dp, m[1], m[3], m[2] + "\n"})
			continue
		}
		if m := leaves.FindStringSubmatch(line); m != nil {
			left = m[1]
		} else if strings.TrimSpace(line) == "drop;" {
			left = ""
		}
		if len(stages) > 0 {
			stages[len(stages)-1].text += line + "\n"
		}
	}
	return stages, way, left
}

// checkLogical requires every step of the walk among the stages, in order, and each choice and
// translation of the stages in the walk. The comparison ends where ovn-trace of OVN 25.03 is
// limited:
//   - at a gateway router's ct_snat without an address,
//   - where a switch chose one of several endpoints, or an endpoint is its own client,
//   - where the next hop is the gateway router's own address. Of two bindings, ovn-trace takes the
//     one that the router has learned from its host, the switch takes the static one.
func checkLogical(v walk.Visit, out string) error {
	stages, way, left := parseLogical(out)
	if len(stages) == 0 {
		return errors.New("it shows nothing")
	}
	cut := strings.HasSuffix(strings.TrimSpace(out), "\n    ct_snat;")
	if i := slices.IndexFunc(stages,
		func(x stage) bool { return x.name == "lr_in_policy" && strings.Contains(x.text, "$secondary_") }); i >= 0 {
		stages, cut = stages[:i+1], true
	}
	if err := translations(v, stages); err != nil {
		return err
	}
	if last := v.Steps[len(v.Steps)-1]; strings.Contains(last.Did, "rejected") && !cut {
		if !strings.Contains(out, "reject") && !strings.Contains(out, "tcp_reset") {
			return errors.New("it does not refuse")
		}
		return nil
	}
	walked, whole, err := meets(v, stages, cut)
	switch {
	case err != nil || !whole:
		return err
	case !slices.Equal(way, walked):
		return fmt.Errorf("it goes through %v, the walk through %v", way, walked)
	case left != v.Out:
		return fmt.Errorf("it leaves by %q, the walk by %q", left, v.Out)
	}
	return nil
}

// meets looks for the steps among the stages, and lists the switches and routers of the walk. whole
// is false if ovn-trace cannot trace the whole visit.
func meets(v walk.Visit, stages []stage, cut bool) (walked []string, whole bool, err error) {
	at := 0
	for i := range v.Steps {
		s := &v.Steps[i]
		dp, name, logical := strings.Cut(s.Stage, " ")
		if !logical { // the tunnel
			continue
		}
		if len(walked) == 0 || walked[len(walked)-1] != dp {
			walked = append(walked, dp)
		}
		j := slices.IndexFunc(stages[at:], func(x stage) bool { return x.dp == dp && x.name == name })
		switch {
		case j >= 0:
		case name == "ls_in_nat_hairpin" || cut:
			return nil, false, nil
		case untold(s.Rule):
			continue
		default:
			return nil, false, fmt.Errorf("no %s after stage %d", s.Stage, at)
		}
		at += j
		if want := evidence(name, s); want != "" && !strings.Contains(stages[at].text, want) {
			if strings.Contains(s.Rule, "ct_mark.") { // a policy that reroutes; ofproto/trace applies it
				return nil, false, nil
			}
			return nil, false, fmt.Errorf("%s: it does not say %q but\n%s", s.Stage, want, stages[at].text)
		}
		if name == "ls_in_lb" && chooses(s) {
			return nil, false, nil
		}
	}
	return walked, !cut, nil
}

// untold reports rules that the switch and ofproto/trace apply, but ovn-trace does not. They match
// a connection's mark, or the flags of a load balancer (force_snat_for_lb, skip_snat_for_lb), which
// ovn-trace loses in ct_lb_mark.
func untold(rule string) bool {
	return strings.Contains(rule, "pkt.mark == "+strconv.Itoa(claims.MarkForceSNAT)) ||
		strings.HasPrefix(rule, "flags.force_snat_for_lb") || strings.HasPrefix(rule, "flags.skip_snat_for_lb")
}

var outPort = regexp.MustCompile(`out of port ([^\s,]+)`)

// evidence returns what a logical flow with the effect of the step must contain.
func evidence(name string, s *packet.Step) string {
	switch name {
	case "lr_in_dnat", "ls_in_lb":
		if strings.Contains(s.Did, "becomes") {
			return fmt.Sprintf("%s:%d", bracketed(s.After), s.After.DstPort)
		}
	case "lr_out_snat":
		if strings.Contains(s.Did, "becomes") {
			return "ct_snat(" + s.After.Src.String()
		}
	case "lr_in_ip_routing", "lr_in_policy", "ls_in_l2_lkup":
		if m := outPort.FindStringSubmatch(s.Did); m != nil && !strings.HasPrefix(s.Did, "to "+m[1]) {
			return `outport = "` + m[1] + `"`
		}
	}
	return ""
}

// translations requires each endpoint, source and policy of ovn-trace in the walk.
func translations(v walk.Visit, stages []stage) error {
	has := func(name string) bool {
		return slices.ContainsFunc(v.Steps, func(s packet.Step) bool { return strings.HasSuffix(s.Stage, " "+name) })
	}
	for _, x := range stages {
		switch {
		case toBackend.MatchString(x.text) && !has(x.name), toSource.MatchString(x.text) && !has(x.name),
			x.name == "lr_in_policy" && x.priority != "0" && !has(x.name):
			return fmt.Errorf("the walk knows nothing of %s %s priority %s\n%s", x.dp, x.name, x.priority, x.text)
		case strings.Contains(x.text, "drop;") && v.Out != "":
			return fmt.Errorf("%s %s drops it", x.dp, x.name)
		}
	}
	return nil
}
