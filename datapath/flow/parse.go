package flow

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"hairpin/cluster"
)

// Parse reads what Print writes: one thing a line, in any order; empty lines and lines that begin with "#" are
// skipped. The error names the line and the word.
func Parse(text string) (State, error) {
	var s State
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if err := s.parseLine(line); err != nil {
			return State{}, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return s, nil
}

func (s *State) parseLine(line string) error {
	command, rest, _ := strings.Cut(line, " ")
	switch command {
	case "bridge":
		name, err := unquote(rest)
		s.Bridge = name
		return wrapWord(line, err)
	case "set":
		return s.parseSetting(rest)
	case "add-port":
		return s.parsePort(rest)
	case "tunnel-bridge":
		name, err := unquote(rest)
		s.TunnelBridge = name
		return wrapWord(line, err)
	case "ovs/route/add":
		return s.parseRoute(rest)
	case "tnl/arp/set":
		return s.parseNeighbor(rest)
	case "unknown":
		s.Unknown = append(s.Unknown, rest)
		return nil
	}
	f, _, err := ParseFlow(line)
	if err != nil {
		return err
	}
	if _, twice := s.Flows[f.Key]; twice {
		return wordError(f.Key.String(), "is there twice")
	}
	if s.Flows == nil {
		s.Flows = map[Key]*Flow{}
	}
	s.Flows[f.Key] = f
	return nil
}

func (s *State) parseSetting(line string) error {
	pair, ok := strings.CutPrefix(line, "Open_vSwitch . external_ids:")
	if !ok {
		return wordError(line, "is not a setting known here")
	}
	key, value, err := parsePair(pair)
	if err != nil {
		return err
	}
	if s.Settings == nil {
		s.Settings = map[string]string{}
	}
	s.Settings[key] = value
	return nil
}

func (s *State) parseRoute(line string) error {
	word, line := nextWord(line)
	to, err := netip.ParsePrefix(word)
	if err != nil || !to.IsSingleIP() {
		return wordError(word, "is not a single address")
	}
	_, line = nextWord(line) // the bridge, which has a line of its own
	via, err := parseAddr(strings.TrimSpace(line))
	if err != nil {
		return wrapWord(line, err)
	}
	if s.TunnelRoutes == nil {
		s.TunnelRoutes = map[netip.Addr]netip.Addr{}
	}
	s.TunnelRoutes[to.Addr()] = via
	return nil
}

func (s *State) parseNeighbor(line string) error {
	_, line = nextWord(line) // the bridge, which has a line of its own
	addr, line := nextWord(line)
	a, err := parseAddr(addr)
	if err != nil {
		return wrapWord(addr, err)
	}
	m, err := cluster.ParseMAC(strings.TrimSpace(line))
	if err != nil {
		return wrapWord(line, err)
	}
	if s.TunnelNeighbors == nil {
		s.TunnelNeighbors = map[netip.Addr]cluster.MAC{}
	}
	s.TunnelNeighbors[a] = m
	return nil
}

func (s *State) parsePort(line string) error {
	line, owner := cutOwner(line)
	p := Port{Owner: owner}
	var err error
	word, line := nextWord(line)
	if p.Bridge, err = unquote(word); err != nil {
		return wrapWord(word, err)
	}
	word, line = nextWord(line)
	if p.Name, err = unquote(word); err != nil {
		return wrapWord(word, err)
	}
	settings, ok := strings.CutPrefix(strings.TrimLeft(line, " "), "-- set Interface "+word)
	if !ok {
		return wordError(line, "is not the setting of an Interface")
	}
	for strings.TrimSpace(settings) != "" {
		if word, settings = nextWord(settings); word == "" {
			continue
		}
		if err := p.parseSetting(word); err != nil {
			return err
		}
	}
	if s.Ports == nil {
		s.Ports = map[string]Port{}
	}
	s.Ports[p.Name] = p
	return nil
}

func (p *Port) parseSetting(word string) error {
	if pair, ok := strings.CutPrefix(word, "external_ids:"); ok {
		key, value, err := parsePair(pair)
		if err != nil {
			return err
		}
		if p.ExternalIDs == nil {
			p.ExternalIDs = map[string]string{}
		}
		p.ExternalIDs[key] = value
		return nil
	}
	column, value, err := parsePair(word)
	if err != nil {
		return err
	}
	switch column {
	case "type":
		p.Type = value
	case "mac":
		p.MAC, err = cluster.ParseMAC(value)
	case "mtu_request":
		p.MTU, err = strconv.Atoi(value)
	default:
		return wordError(word, "is not a column known here")
	}
	return wrapWord(word, err)
}

// parsePair reads key=value, either of them quoted or not.
func parsePair(s string) (key, value string, err error) {
	quotedKey, quotedValue := cutOutside(s, '=')
	if len(quotedKey) == len(s) {
		return "", "", wordError(s, "has no =")
	}
	if key, err = unquote(quotedKey); err != nil {
		return "", "", wrapWord(s, err)
	}
	if value, err = unquote(quotedValue); err != nil {
		return "", "", wrapWord(s, err)
	}
	return key, value, nil
}
