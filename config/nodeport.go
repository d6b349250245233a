package config

import (
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
)

// setNodePortOn reads the word "primary" and ranges, in any order.
func setNodePortOn(on *cluster.NodePortAddresses, v string) error {
	var n cluster.NodePortAddresses
	for _, word := range strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' }) {
		if word == "primary" {
			n.Primary = true
			continue
		}
		p, err := parsePrefix(word)
		if err != nil {
			return err
		}
		n.Ranges = append(n.Ranges, p)
	}
	slices.SortFunc(n.Ranges, netip.Prefix.Compare)
	n.Ranges = slices.Compact(n.Ranges)
	*on = n
	return nil
}

func getNodePortOn(on *cluster.NodePortAddresses) string {
	text := join(on.Ranges)
	switch {
	case on.Primary && text != "":
		return "primary," + text
	case on.Primary:
		return "primary"
	}
	return text
}
