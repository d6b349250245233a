package flow

import (
	"fmt"
	"strconv"
	"strings"

	"hairpin/cluster"
)

// Parts of a learn action, in the order of ovs-ofctl.
const (
	learnWords = "table=%d,idle_timeout=%d,delete_learned,cookie=0x%x,limit=%d,eth_type=0x%x,NXM_NX_REG6[%d..31],%s,load:NXM_NX_REG7[]->NXM_NX_REG7[]"
	source4    = "NXM_OF_IP_SRC[]"
	source6    = "NXM_NX_IPV6_SRC[]"
)

func (l Learn) append(b []byte) []byte {
	source := source4
	if l.Family == cluster.IPv6 {
		source = source6
	}
	return fmt.Appendf(b, "learn("+learnWords+")", l.Table, l.Timeout, l.cookie(), l.Limit,
		ip(l.Family).row().etherType,
		l.Ways, source)
}

// parseLearn accepts only what append writes.
func parseLearn(word, inside string) (Action, error) {
	var l Learn
	var cookie uint64
	for item := range strings.SplitSeq(inside, ",") {
		name, value, _ := strings.Cut(item, "=")
		var err error
		switch name {
		case "table":
			err = number(&l.Table, item, value, 8)
		case "idle_timeout":
			err = number(&l.Timeout, item, value, 16)
		case "cookie":
			err = number(&cookie, item, value, 64)
			l.Client = uint32(cookie >> 32)
		case "limit":
			err = number(&l.Limit, item, value, 32)
		case "eth_type":
			if l.Family = cluster.IPv4; value == "0x86dd" {
				l.Family = cluster.IPv6
			}
		}
		if err != nil {
			return nil, err
		}
		if bits, ok := between(item, "NXM_NX_REG6[", "..31]"); ok {
			if l.Ways, ok = parseWays(bits); !ok {
				return nil, wordError(item, "has no bits")
			}
		}
	}
	if string(l.append(nil)) != word {
		return nil, wordError(word, "is not how a flow of ours learns")
	}
	return l, nil
}

func parseWays(s string) (uint8, bool) {
	n, err := strconv.ParseUint(s, 10, 5)
	return uint8(n), err == nil
}
