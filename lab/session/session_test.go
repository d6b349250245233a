package session

import "testing"

// TestSame: a session matches other ports, times, counts and versions, but not another word,
// address or line.
func TestSame(t *testing.T) {
	s := Session{Printed: "NODE    PART  SINCE  READS\nnode-a  ovn   1m2s   14\n…\nSENT tcp 172.18.0.3:46079 > " +
		"10.96.1.3:80: answered after 1.4 ms\n    seen: 4 packets\n12 of 30 steps\nhairpin (devel)\n"}
	const head, tail = "NODE    PART   SINCE  READS\nnode-a  ovn    7s     8\n",
		"    seen: 12 packets\n12 of 30 steps\nhairpin v0.0.0-20261123164526-bdb1795ebb5a+dirty\n"
	for printed, same := range map[string]bool{
		head + "more\n\nand more\nSENT tcp 172.18.0.3:51002 > 10.96.1.3:80: answered after 11 ms\n" + tail:   true,
		head + "more\nSENT tcp 172.18.0.3:51002 > 10.96.1.4:80: answered after 11 ms\n" + tail:               false,
		head + "more\nSENT tcp 172.18.0.3:51002 > 10.96.1.3:80: refused after 11 ms\n" + tail:                false,
		head + "more\nSENT tcp 172.18.0.3:51002 > 10.96.1.3:80: answered after 11 ms\nseen\n" + tail:         false,
		head + "more\nSENT tcp 172.18.0.3:51002 > 10.96.1.3:80: answered after 11 ms\n" + tail + "warning\n": false,
	} {
		if s.Same(printed) != same {
			t.Errorf("same is not %t:\n%s", same, printed)
		}
	}
}
