package explain

import (
	"regexp"
	"strings"

	"hairpin/pipeline"
)

// Kind is a kind of place that a packet passes.
type Kind uint8

// The kinds of places.
const (
	Unknown Kind = iota
	Host         // a host's kernel: routing, neighbours, nft, conntrack
	Bridge       // an Open vSwitch bridge with Hairpin's flows
	Switch       // a logical switch
	Router       // a logical router
	Tunnel       // between two nodes
)

// Place is where a step happened.
type Place struct {
	Kind Kind
	Name string // of the bridge, switch or router
	Part string // table, logical stage, chain or command
}

var logicalStage = regexp.MustCompile(`^(\S+) ((?:lr|ls)_(?:in|out)_\w+)$`)

// PlaceOf reads a step's stage, as walk writes it.
func PlaceOf(stage string) Place {
	switch first, rest, _ := strings.Cut(stage, " "); first {
	case "ip", "nft", "conntrack", "tc":
		return Place{Host, "host", stage}
	case "geneve":
		return Place{Tunnel, first, ""}
	default:
		if pipeline.Named(rest) || strings.HasPrefix(rest, "table ") || strings.HasPrefix(rest, "group ") {
			return Place{Bridge, first, rest}
		}
	}
	m := logicalStage.FindStringSubmatch(stage)
	switch {
	case m == nil:
		return Place{Unknown, "", stage}
	case strings.HasPrefix(m[2], "lr_"):
		return Place{Router, m[1], m[2]}
	}
	return Place{Switch, m[1], m[2]}
}
