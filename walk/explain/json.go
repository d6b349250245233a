package explain

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"hairpin/cluster"
	"hairpin/policy"
	"hairpin/walk/explain/names"
	"hairpin/walk/explain/why"
	"hairpin/walk/packet"
)

type (
	jsonExplanation struct {
		From      string           `json:"from"`
		To        string           `json:"to"`
		Way       string           `json:"way"` // the Destination
		Service   string           `json:"service,omitempty"`
		Endpoints []jsonEndpoint   `json:"endpoints,omitempty"`
		Sent      jsonPacket       `json:"sent"`
		Forward   []jsonStep       `json:"forward"`
		Reply     []jsonStep       `json:"reply,omitempty"`
		Policies  []jsonDecision   `json:"policies,omitempty"`
		Verdict   jsonVerdict      `json:"verdict"`
		Costs     jsonCosts        `json:"costs"`
		Hosts     []jsonConnection `json:"hostConnections,omitempty"`
		Fault     *Fault           `json:"fault,omitempty"`
		Proof     *Proof           `json:"proof,omitempty"`
	}
	jsonEndpoint struct {
		Address  netip.AddrPort `json:"address"`
		Owner    string         `json:"owner,omitempty"`
		Node     string         `json:"node,omitempty"`
		State    string         `json:"state"`
		Followed bool           `json:"followed"`
		Possible bool           `json:"possible"`
	}
	jsonPacket struct {
		Protocol string         `json:"protocol"`
		Source   netip.AddrPort `json:"source"`
		Dest     netip.AddrPort `json:"destination"`
		EthSrc   string         `json:"ethSource,omitempty"`
		EthDst   string         `json:"ethDestination,omitempty"`
		Mark     uint32         `json:"mark,omitempty"`
	}
	jsonStep struct {
		Node    string     `json:"node,omitempty"`
		Stage   string     `json:"stage"`
		Rule    string     `json:"rule,omitempty"`
		Did     string     `json:"did"`
		Why     string     `json:"why,omitempty"`
		Before  jsonPacket `json:"before"`
		After   jsonPacket `json:"after"`
		Entry   string     `json:"conntrack,omitempty"`
		Choices []string   `json:"choices,omitempty"`
		Key     bool       `json:"key,omitempty"`   // the text has it without -v
		Proof   *Evidence  `json:"proof,omitempty"` // of a packet that was really sent
	}
	jsonDecision struct {
		Direction string     `json:"direction"`
		Node      string     `json:"node"`
		Pod       string     `json:"pod"`
		Packet    jsonPacket `json:"packet"` // that was compared with the rules
		Note      string     `json:"note,omitempty"`
		Accepted  bool       `json:"accepted"`
		Policy    string     `json:"policy,omitempty"` // that decided, with its rule
		Rule      int        `json:"rule,omitempty"`   // from 1
		Isolating []string   `json:"isolating,omitempty"`
		Misses    []jsonMiss `json:"misses,omitempty"`
		Sentence  string     `json:"sentence"`
	}
	jsonMiss struct {
		Policy string `json:"policy"`
		Rule   int    `json:"rule"` // from 1
		Point  string `json:"point"`
	}
	jsonVerdict struct {
		Delivered bool        `json:"delivered"`
		Rejected  bool        `json:"rejected"`
		Answered  bool        `json:"answered"`
		At        string      `json:"at,omitempty"`
		Seen      *jsonPacket `json:"seen,omitempty"`
		Sentence  string      `json:"sentence"`
		Reason    why.Reason  `json:"reason"`
		Why       string      `json:"why"`              // the reason in words
		Object    string      `json:"object,omitempty"` // that decides
		Unknown   string      `json:"unknown,omitempty"`
	}
	jsonCosts struct {
		First jsonCost  `json:"first"`
		Later *jsonCost `json:"later,omitempty"`
		Reply *jsonCost `json:"reply,omitempty"`
	}
	jsonCost struct {
		Passes  int `json:"conntrackPasses"`
		InHosts int `json:"inHosts"` // included in Passes
		Lookups int `json:"datapathLookups"`
	}
	jsonConnection struct {
		Node string         `json:"node"`
		From netip.AddrPort `json:"from"`
		To   netip.AddrPort `json:"to"`
	}
)

// JSON returns the walk for programs, with the Fault of AddFault. Field names are stable; more
// fields may follow.
func (e *Explanation) JSON() ([]byte, error) {
	v := e.Trace.Verdict
	x := jsonExplanation{From: e.Trace.From.String(), To: e.Question.To, Way: e.Destination, Service: e.Service,
		Sent:    packetOf(e.Trace.Sent),
		Forward: stepsOf(e.Trace.Sent, e.Trace.Forward), Reply: stepsOf(e.replied(), e.Trace.Reply), Fault: e.fault,
		Proof: e.Proof,
		Verdict: jsonVerdict{Delivered: v.Delivered, Rejected: v.Rejected, Answered: v.Answered,
			Sentence: e.Sentence()}}
	reason := e.Why()
	x.Verdict.Reason, x.Verdict.Why, x.Verdict.Object = reason.Reason, reason.Text, reason.Object.String()
	if v.Delivered {
		seen := packetOf(v.Seen)
		x.Verdict.At, x.Verdict.Seen = v.At.String(), &seen
	}
	costs := e.Trace.Costs
	if x.Costs.First = jsonCost(costs.First); costs.Later != (packet.Cost{}) {
		later := jsonCost(costs.Later)
		x.Costs.Later = &later
	}
	if costs.Reply != (packet.Cost{}) {
		reply := jsonCost(costs.Reply)
		x.Costs.Reply = &reply
	}
	if e.Failure != nil {
		x.Verdict.Unknown = e.Failure.Error()
	}
	for _, i := range e.forwardKeys() {
		x.Forward[i].Key = true
	}
	for _, i := range e.replyKeys() {
		x.Reply[i].Key = true
	}
	for _, p := range e.Endpoints {
		x.Endpoints = append(x.Endpoints, jsonEndpoint{p.Addr, p.Owner, p.Node, p.State, p.Chosen, p.Possible})
	}
	for _, b := range e.HostConnections {
		x.Hosts = append(x.Hosts, jsonConnection(b))
	}
	for i := range e.Policies {
		x.Policies = append(x.Policies, decisionOf(&e.Policies[i]))
	}
	if p := e.Proof; p != nil {
		for i := range x.Forward {
			x.Forward[i].Proof = &p.Forward[i]
		}
		for i := range x.Reply {
			x.Reply[i].Proof = &p.Reply[i]
		}
	}
	text, err := json.MarshalIndent(x, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("explanation as JSON: %w", err)
	}
	return append(text, '\n'), nil
}

func decisionOf(d *why.Decision) jsonDecision {
	x := jsonDecision{Direction: d.Direction.String(), Node: d.Node, Pod: names.Pod(d.Pod), Packet: packetOf(d.Packet),
		Note: d.Note, Accepted: d.Accepted, Sentence: d.String()}
	if d.Reason == policy.ByRule {
		x.Policy, x.Rule = d.Owner.String(), d.Rule+1
	}
	for _, o := range d.Isolating {
		x.Isolating = append(x.Isolating, o.String())
	}
	for _, m := range d.Misses {
		x.Misses = append(x.Misses, jsonMiss{m.Owner.String(), m.Rule + 1, m.Point})
	}
	return x
}

func packetOf(p packet.Packet) jsonPacket {
	x := jsonPacket{Protocol: p.Protocol.String(), Source: p.Source(),
		Dest: p.Destination(), Mark: p.Mark}
	if p.EthSrc != (cluster.MAC{}) {
		x.EthSrc = p.EthSrc.String()
	}
	if p.EthDst != (cluster.MAC{}) {
		x.EthDst = p.EthDst.String()
	}
	return x
}

func stepsOf(before packet.Packet, list []packet.Step) []jsonStep {
	var out []jsonStep
	for i := range list {
		s := &list[i]
		x := jsonStep{Node: s.Node, Stage: s.Stage, Rule: s.Rule, Did: s.Did, Before: packetOf(before),
			After: packetOf(s.After), Entry: s.Entry}
		if s.Why != (cluster.Owner{}) {
			x.Why = s.Why.String()
		}
		for _, c := range s.Choices {
			x.Choices = append(x.Choices, c.String())
		}
		out = append(out, x)
		before = s.After
	}
	return out
}
