package demo

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/lab/trace"
	"hairpin/walk"
	"hairpin/walk/packet"
)

// bridges adds what ofproto/trace must show for each visit of Open vSwitch. A trace does not know
// the translations of replies, which are in conntrack. So for OVN's bridge, only the path to the
// server is compared.
func (c *comparison) bridges(about string, tr walk.Trace) {
	for i, v := range tr.ForwardVisits {
		next := ""
		if i+1 < len(tr.ForwardVisits) && tr.ForwardVisits[i+1].Node == v.Node {
			next = tr.ForwardVisits[i+1].Port
		}
		if v.OVN {
			c.note(v.Node, question{"ofproto/trace of br-int", about, c.traceOf(v),
				func(out string) error { return c.checkOVN(v, next, out) }})
			continue
		}
		c.note(v.Node, question{"ofproto/trace of " + v.Bridge, about, c.traceOf(v),
			func(out string) error { return c.checkBridge(v, out) }})
	}
	for _, v := range tr.ReplyVisits {
		if !v.OVN {
			c.note(v.Node, question{"ofproto/trace of " + v.Bridge, about + ", reply", c.traceOf(v),
				func(out string) error { return c.checkBridge(v, out) }})
		}
	}
}

func (c *comparison) note(node string, q question) { c.asked[node] = append(c.asked[node], q) }

// traceOf returns the command for a visit: the packet on entry, and its conntrack states.
func (c *comparison) traceOf(v walk.Visit) string {
	bridge, port := v.Bridge, v.Port
	var more []string
	if v.OVN {
		bridge, port = "br-int", c.linkOf(v.Node, v.Port)
	}
	if t := v.Tunnel; t != (flow.Tunnel{}) {
		more = append(more, fmt.Sprintf("tun_id=0x%x,tun_src=%s,tun_metadata0=0x%x", t.Key, t.Peer, t.Ports))
	}
	if len(v.Passes) > 0 && v.Passes[0].Mark != 0 && v.Passes[0].State&flow.CTNew == 0 {
		more = append(more, fmt.Sprintf("ct_mark=%d", v.Passes[0].Mark))
		if from := v.Passes[0].From; from != (cluster.MAC{}) {
			more = append(more, fmt.Sprintf("ct_label=0x%x", from[:]))
		}
	}
	return trace.Command(bridge, port, v, more...)
}

// readPorts reads the ports of each node's bridges, and the interfaces of OVN's logical ports.
func (c *comparison) readPorts() {
	c.t.Helper()
	for _, n := range c.d.lab.Nodes() {
		c.links[[2]string{n.Name(), "br-ex_" + n.Name()}] = "patch-br-int-to-br-ex_" + n.Name()
		c.links[[2]string{n.Name(), "lnet-node_local_switch"}] = "patch-br-int-to-lnet-node_local_switch"
		for _, bridge := range []string{"br-ex", "br-int", "br-local", claims.ServiceBridge, claims.TunnelBridge} {
			out, err := n.Exec(c.t.Context(), "sh", "-c", "! ovs-vsctl br-exists "+bridge+
				" || ovs-vsctl --no-headings --format=csv --data=bare --columns=ofport,name,external_ids list "+
				"Interface $(ovs-vsctl list-ports "+bridge+")")
			if err != nil {
				c.t.Fatal(err)
			}
			for line := range strings.Lines(out) {
				words := strings.SplitN(strings.TrimSpace(line), ",", 3)
				c.ports[[3]string{n.Name(), bridge, words[0]}] = words[1]
				if m := ifaceID.FindStringSubmatch(words[2]); m != nil {
					c.links[[2]string{n.Name(), m[1]}] = words[1]
				}
			}
		}
	}
}

// linkOf returns the port of OVN's bridge for a logical port.
func (c *comparison) linkOf(node, logical string) string { return c.links[[2]string{node, logical}] }

var ifaceID = regexp.MustCompile(`\biface-id=([^\s",]+)`)

func (c *comparison) parseTrace(node, bridge, out string) trace.Trace {
	return trace.Parse(bridge, out, func(number string) string { return c.ports[[3]string{node, bridge, number}] })
}

// beyondMTU matches the flow of packets that exceed the pods' MTU. The trace shows both branches,
// but a walk's packet is short.
var beyondMTU = regexp.MustCompile(`(?m)^.*\bpkt_mark=0x1,.*\n`)

// checkBridge requires the flows of the gateway bridge or br-svc in the walk, each with its cookie,
// and equally many conntrack passes.
func (c *comparison) checkBridge(v walk.Visit, out string) error {
	t := c.parseTrace(v.Node, v.Bridge, beyondMTU.ReplaceAllString(out, ""))
	into := strings.HasPrefix(v.Out, "patch-") || v.Out == claims.ServicePatch || v.Out == claims.TunnelPatch
	if v.Bridge == "br-local" { // it has no flows of Hairpin
		if into != (t.Left == "br-int") || !strings.Contains(out, "NORMAL") {
			return fmt.Errorf("it leaves for %q, not by %s", t.Left, v.Out)
		}
		return nil
	}
	if err := t.Met(v); err != nil {
		if slices.ContainsFunc(v.Steps, func(s packet.Step) bool { return chooses(&s) }) {
			return nil // a group may have chosen another endpoint in the trace
		}
		return err
	}
	if into != (t.Left == "br-int") {
		return fmt.Errorf("it leaves for %q, not by %s", t.Left, v.Out)
	}
	return nil
}

// checkOVN requires the same translations, and the same output.
func (c *comparison) checkOVN(v walk.Visit, next, out string) error {
	t := c.parseTrace(v.Node, "br-int", out)
	if slices.ContainsFunc(v.Steps, func(s packet.Step) bool { return chooses(&s) }) {
		return nil // the trace may choose another endpoint; ovn-trace gets it as an option
	}
	if err := t.Passed(v); err != nil {
		return err
	}
	if err := c.stages(v, t); err != nil {
		return err
	}
	if err := t.Made(v); err != nil {
		return err
	}
	if v.Out == "" {
		if len(t.Outputs) > 0 || t.Left != "" {
			return fmt.Errorf("it leaves by %v for %q, and the walk ends there", t.Outputs, t.Left)
		}
		return nil
	}
	if want := c.linkOf(v.Node, v.Out); strings.HasPrefix(want, "patch-") {
		bridge := "br-ex"
		if strings.Contains(want, "lnet-") {
			bridge = "br-local"
		}
		if t.Left != bridge {
			return fmt.Errorf("it leaves by %v for %q, not for %s", t.Outputs, t.Left, bridge)
		}
	} else if want == claims.OthersPatch {
		if t.Left != claims.TunnelBridge {
			return fmt.Errorf("it leaves by %v for %q, not for %s", t.Outputs, t.Left, claims.TunnelBridge)
		}
	} else if !slices.Contains(t.Outputs, want) {
		return fmt.Errorf("it leaves by %v, not by %s", t.Outputs, want)
	}
	return nil
}

// stages requires each step of the walk among the logical stages of OVN's flows, in order, and each
// choice of OVN in the walk.
func (c *comparison) stages(v walk.Visit, t trace.Trace) error {
	var met []string
	for _, text := range t.Flows {
		m := ofStage.FindStringSubmatch(text)
		if m == nil || m[2] == "0" {
			continue
		}
		name := c.logicalFlows[v.Node][m[1]]
		if dp := c.datapaths[v.Node][m[3]]; name != "" && dp != "" {
			met = append(met, dp+" "+name)
		}
	}
	at := 0
	for _, s := range v.Steps {
		// conjunctions have no cookie
		if !strings.Contains(s.Stage, " l") || strings.Contains(s.Rule, "$") &&
			strings.HasSuffix(s.Stage, " lr_out_snat") {
			continue
		}
		j := slices.Index(met[at:], s.Stage)
		if j < 0 {
			return fmt.Errorf("no flow of %s after\n  %s\namong\n  %s", s.Stage, strings.Join(met[:at], "\n  "),
				strings.Join(met[at:], "\n  "))
		}
		at += j
	}
	for _, x := range met {
		_, name, _ := strings.Cut(x, " ")
		switch name {
		case "lr_in_dnat", "ls_in_lb", "lr_out_snat", "lr_in_policy":
			if !slices.ContainsFunc(v.Steps, func(s packet.Step) bool { return s.Stage == x }) {
				return fmt.Errorf("the walk knows nothing of %s", x)
			}
		}
	}
	return nil
}

var ofStage = regexp.MustCompile(`^cookie=(0x[0-9a-f]+),table=\d+,priority=(\d+),.*\bmetadata=(0x[0-9a-f]+)`)

// readLogicalFlows reads the stage for which ovn-controller created each flow. The cookie is the
// beginning of the row's UUID.
func (c *comparison) readLogicalFlows() {
	c.t.Helper()
	for _, n := range c.d.lab.Nodes() {
		flows, datapaths := map[string]string{}, map[string]string{}
		list := func(table, columns string, add func(words []string)) {
			out, err := n.Exec(c.t.Context(), "ovn-sbctl", "--no-leader-only", "--no-headings", "--format=csv",
				"--data=bare", "--columns="+columns, "list", table)
			if err != nil {
				c.t.Fatal(err)
			}
			for line := range strings.Lines(out) {
				add(strings.SplitN(strings.TrimSpace(line), ",", 2))
			}
		}
		list("Logical_Flow", "_uuid,external_ids", func(w []string) {
			if m := stageName.FindStringSubmatch(w[1]); m != nil {
				flows["0x"+strings.TrimLeft(w[0][:8], "0")] = m[1]
			}
		})
		list("Datapath_Binding", "tunnel_key,external_ids", func(w []string) {
			if key, err := strconv.Atoi(w[0]); err == nil {
				if m := datapathName.FindStringSubmatch(w[1]); m != nil {
					datapaths[fmt.Sprintf("0x%x", key)] = m[1]
				} else if m := interconnName.FindStringSubmatch(w[1]); m != nil {
					datapaths[fmt.Sprintf("0x%x", key)] = m[1]
				}
			}
		})
		c.logicalFlows[n.Name()], c.datapaths[n.Name()] = flows, datapaths
	}
}

var (
	stageName     = regexp.MustCompile(`\bstage-name=(\w+)`)
	datapathName  = regexp.MustCompile(`\bname=([^\s",]+)`)
	interconnName = regexp.MustCompile(`\binterconn-ts=([^\s",]+)`)
)
