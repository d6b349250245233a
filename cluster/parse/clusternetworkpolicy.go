package parse

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"

	"hairpin/api/clusternetworkpolicy"
	"hairpin/cluster"
)

// clusterNetworkPolicySpec is the spec. Unions, of which a later version of the API may have
// further fields, are maps by field.
type clusterNetworkPolicySpec struct {
	Tier     string                     `json:"tier"`
	Priority *int64                     `json:"priority"`
	Subject  map[string]json.RawMessage `json:"subject"`
	Ingress  []clusterNetworkPolicyRule `json:"ingress"`
	Egress   []clusterNetworkPolicyRule `json:"egress"`
}

type clusterNetworkPolicyRule struct {
	Name      string                       `json:"name"`
	Action    string                       `json:"action"`
	From      []map[string]json.RawMessage `json:"from"`
	To        []map[string]json.RawMessage `json:"to"`
	Protocols []map[string]json.RawMessage `json:"protocols"`
}

type clusterNetworkPolicyParser struct{ objectParser }

// ClusterNetworkPolicy returns the facts of a ClusterNetworkPolicy. Parts that it cannot read fail
// closed. The API requires that for peers of an unknown kind.
//
//   - A rule with an invalid or unknown part matches nothing if its action is Accept. Otherwise it
//     denies everything.
//   - With an unknown tier or an invalid priority, this holds for all rules, in the tier Admin.
//   - With an invalid subject, the policy selects no pod: all rules are without effect.
//   - If a direction has more than MaxRules, rule MaxRules and those after it are replaced by one
//     rule: it denies everything if one of them is not Accept, and otherwise matches nothing.
func ClusterNetworkPolicy(o *clusternetworkpolicy.ClusterNetworkPolicy) (*cluster.Policy, []cluster.Problem) {
	p := clusterNetworkPolicyParser{objectParser{owner: Owner(o)}}
	policy := &cluster.Policy{Owner: p.owner, Tier: cluster.TierAdmin}
	var spec clusterNetworkPolicySpec
	if err := strictJSON(o.Spec, &spec); err != nil {
		p.problem("spec", "%v: the policy has no effect", err)
		return policy, p.problems.List()
	}
	subject, err := podsPeer(spec.Subject)
	if err == nil && subject == nil {
		err = errors.New("is neither namespaces nor pods")
	}
	if err != nil {
		p.problem("spec.subject", "%v: the policy selects no pod", err)
		return policy, p.problems.List()
	}
	policy.Subject = *subject
	valid := true
	switch spec.Tier {
	case "Admin":
	case "Baseline":
		policy.Tier = cluster.TierBaseline
	default:
		valid = false
		p.problem("spec.tier", "%q is neither Admin nor Baseline: in the tier Admin, rules that accept match "+
			"nothing, and all others deny everything", spec.Tier)
	}
	if spec.Priority == nil || *spec.Priority < 0 || *spec.Priority > cluster.MaxPriority {
		valid = false
		p.problem("spec.priority", "is not a number from 0 to %d: rules that accept match nothing, and all others "+
			"deny everything", cluster.MaxPriority)
	} else {
		policy.Priority = int(*spec.Priority)
	}
	policy.Ingress.Rules = p.rules("spec.ingress", "from", spec.Ingress, valid)
	policy.Egress.Rules = p.rules("spec.egress", "to", spec.Egress, valid)
	return policy, p.problems.List()
}

// strictJSON decodes a text with known fields only.
func strictJSON(text []byte, into any) error {
	if len(text) == 0 {
		return errors.New("is missing")
	}
	unknown, err := kjson.UnmarshalStrict(text, into)
	return errors.Join(append(unknown, err)...)
}

// rules parses the rules of a direction. list is the name of their lists of peers, "from" or "to".
func (p *clusterNetworkPolicyParser) rules(field, list string, rules []clusterNetworkPolicyRule,
	valid bool) (out []cluster.PolicyRule) {
	for i := range rules {
		r := &rules[i]
		at := fmt.Sprintf("%s[%d]", field, i)
		action, err := parseAction(r.Action)
		if err != nil {
			p.problem(at+".action", "%v: the rule denies everything", err)
		}
		rule, problems := parseClusterRule(list, r)
		for _, x := range problems {
			p.problem(at+x.Field, "%s: %s", x.Message, whenClosed(action))
		}
		rule.Action = action
		if !valid || err != nil || len(problems) > 0 {
			rule = failClosed(action)
		}
		out = append(out, rule)
	}
	if len(out) <= cluster.MaxRules {
		return out
	}
	action := cluster.Accept
	for _, r := range out[cluster.MaxRules-1:] {
		if r.Action != cluster.Accept {
			action = cluster.Deny
		}
	}
	p.problem(field, "has %d rules, more than %d: from rule %d on, %s", len(out), cluster.MaxRules, cluster.MaxRules,
		whenClosed(action))
	return append(out[:cluster.MaxRules-1:cluster.MaxRules-1], failClosed(action))
}

func parseAction(text string) (cluster.PolicyAction, error) {
	switch text {
	case "Accept":
		return cluster.Accept, nil
	case "Deny":
		return cluster.Deny, nil
	case "Pass":
		return cluster.Pass, nil
	}
	return cluster.Deny, fmt.Errorf("%q is none of Accept, Deny and Pass", text)
}

// failClosed returns the rule in place of one that cannot be read.
func failClosed(action cluster.PolicyAction) cluster.PolicyRule {
	if action == cluster.Accept {
		return cluster.PolicyRule{}
	}
	return cluster.PolicyRule{Action: cluster.Deny, AllPeers: true, AllPorts: true}
}

func whenClosed(action cluster.PolicyAction) string {
	if action == cluster.Accept {
		return "the rule matches nothing"
	}
	return "the rule denies everything"
}

// parseClusterRule parses the peers and protocols of a rule. The fields of problems are relative to
// the rule.
func parseClusterRule(list string, r *clusterNetworkPolicyRule) (rule cluster.PolicyRule, problems []cluster.Problem) {
	bad := func(field, format string, args ...any) {
		problems = append(problems, cluster.Problem{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	peers, others, other := r.From, r.To, "to"
	if list == "to" {
		peers, others, other = r.To, r.From, "from"
	}
	if len(others) > 0 {
		bad("."+other, "belongs to the other direction")
	}
	if len(peers) == 0 {
		bad("."+list, "has no peer")
	}
	blocks := 0
	for i, fields := range peers {
		at := fmt.Sprintf(".%s[%d]", list, i)
		peer, err := parseClusterPeer(list, fields)
		if err != nil {
			bad(at+fieldOf(fields), "%v", err)
			continue
		}
		if blocks += len(peer.Blocks); blocks > MaxBlocks {
			bad(at, "the networks of the rule are more than %d", MaxBlocks)
			break
		}
		rule.Peers = append(rule.Peers, peer)
	}
	rule.AllPorts = r.Protocols == nil
	if !rule.AllPorts && len(r.Protocols) == 0 {
		bad(".protocols", "is empty")
	}
	for i, fields := range r.Protocols {
		ports, err := parseClusterProtocol(fields)
		if err != nil {
			bad(fmt.Sprintf(".protocols[%d]%s", i, fieldOf(fields)), "%v", err)
		}
		rule.Ports = append(rule.Ports, ports...)
	}
	return rule, problems
}

// fieldOf returns the name of the only field of a union, with a dot; empty if there is not one.
func fieldOf(fields map[string]json.RawMessage) string {
	if name, err := onlyField(fields); err == nil {
		return "." + cluster.Truncate(name, maxField)
	}
	return ""
}

// maxField is the largest number of bytes of an unknown field's name that a Problem has.
const maxField = 63

func onlyField(fields map[string]json.RawMessage) (string, error) {
	switch names := slices.Sorted(maps.Keys(fields)); len(names) {
	case 0:
		return "", errors.New("has no field that is known")
	case 1:
		return names[0], nil
	default:
		return "", fmt.Errorf("has more than one field: %s", strings.Join(names, ", "))
	}
}

// podsPeer parses a peer or a subject that selects pods. It returns nil for another kind.
func podsPeer(fields map[string]json.RawMessage) (*cluster.PodSelector, error) {
	name, err := onlyField(fields)
	if err != nil {
		return nil, err
	}
	s := &cluster.PodSelector{}
	switch name {
	case "namespaces":
		s.Namespaces, err = parseRawSelector(fields[name])
		return s, err
	case "pods":
		var pods struct {
			Namespaces json.RawMessage `json:"namespaceSelector"`
			Pods       json.RawMessage `json:"podSelector"`
		}
		if err := strictJSON(fields[name], &pods); err != nil {
			return nil, err
		}
		if pods.Namespaces != nil { // without it, pods of all namespaces
			if s.Namespaces, err = parseRawSelector(pods.Namespaces); err != nil {
				return nil, fmt.Errorf("namespaceSelector %w", err)
			}
		}
		if s.Pods, err = parseRawSelector(pods.Pods); err != nil {
			return nil, fmt.Errorf("podSelector %w", err)
		}
		return s, nil
	}
	return nil, nil
}

func parseRawSelector(text json.RawMessage) (cluster.Selector, error) {
	var s *metav1.LabelSelector
	if err := strictJSON(text, &s); err != nil {
		return cluster.Selector{}, err
	}
	if s == nil {
		return cluster.Selector{}, errors.New("is missing")
	}
	return parseSelector(s)
}

func parseClusterPeer(list string, fields map[string]json.RawMessage) (peer cluster.PolicyPeer, err error) {
	if peer.Pods, err = podsPeer(fields); err != nil || peer.Pods != nil {
		return peer, err
	}
	name, _ := onlyField(fields)
	switch {
	case list == "to" && name == "networks":
		peer.Blocks, err = parseNetworks(fields[name])
	case list == "to" && name == "nodes":
		var s cluster.Selector
		s, err = parseRawSelector(fields[name])
		peer.Nodes = &s
	default:
		err = errors.New("is a kind of peer that is not supported")
	}
	return peer, err
}

// parseNetworks returns the prefixes of a list, sorted, without those within another.
func parseNetworks(text json.RawMessage) (blocks []netip.Prefix, err error) {
	var texts []string
	if err := strictJSON(text, &texts); err != nil {
		return nil, err
	}
	if len(texts) == 0 {
		return nil, errors.New("is empty")
	}
	for _, t := range texts {
		block, ok := cluster.ParsePrefix(t)
		if !ok {
			return nil, fmt.Errorf("%q is not an address range", t)
		}
		blocks = append(blocks, block.Masked())
	}
	slices.SortFunc(blocks, cluster.ComparePrefixes)
	// A prefix comes behind those that contain it.
	kept := blocks[:0]
	for _, b := range blocks {
		if n := len(kept); n == 0 || !kept[n-1].Overlaps(b) {
			kept = append(kept, b)
		}
	}
	return slices.Clip(kept), nil
}

// parseClusterProtocol returns the ports of an item of a rule's protocols. A named port has no
// protocol: it matches the container ports of that name of all protocols.
func parseClusterProtocol(fields map[string]json.RawMessage) ([]cluster.PolicyPort, error) {
	name, err := onlyField(fields)
	if err != nil {
		return nil, err
	}
	if name == "destinationNamedPort" {
		var port string
		if err := strictJSON(fields[name], &port); err != nil {
			return nil, err
		}
		if wrong := validation.IsValidPortName(port); len(wrong) > 0 {
			return nil, fmt.Errorf("%q is not the name of a port: %s", port, wrong[0])
		}
		return []cluster.PolicyPort{{Protocol: cluster.TCP, Name: port}, {Protocol: cluster.UDP, Name: port},
			{Protocol: cluster.SCTP, Name: port}}, nil
	}
	protocol, known := map[string]cluster.Protocol{"tcp": cluster.TCP, "udp": cluster.UDP, "sctp": cluster.SCTP}[name]
	if !known {
		return nil, errors.New("is a kind of protocol that is not supported")
	}
	var p struct {
		Port *struct {
			Number *int64 `json:"number"`
			Range  *struct {
				Start int64 `json:"start"`
				End   int64 `json:"end"`
			} `json:"range"`
		} `json:"destinationPort"`
	}
	if err := strictJSON(fields[name], &p); err != nil {
		return nil, err
	}
	var first, last int64
	switch {
	case p.Port == nil || (p.Port.Number == nil) == (p.Port.Range == nil):
		return nil, errors.New("has not exactly one of destinationPort.number and destinationPort.range")
	case p.Port.Number != nil:
		first, last = *p.Port.Number, *p.Port.Number
	default:
		first, last = p.Port.Range.Start, p.Port.Range.End
	}
	if first < 1 || last > 65535 || first > last {
		return nil, fmt.Errorf("destinationPort: %d to %d is not a range of port numbers (1 to 65535)", first, last)
	}
	return []cluster.PolicyPort{{Protocol: protocol, First: uint16(first), Last: uint16(last)}}, nil
}
