package cluster_test

import (
	"strings"
	"testing"

	"hairpin/cluster"
)

func FuzzParseMAC(f *testing.F) {
	f.Add("0a:58:0a:f4:01:03")
	f.Add("0A:58:0a:F4:01:0x")
	f.Fuzz(func(t *testing.T, s string) {
		m, err := cluster.ParseMAC(s)
		if err != nil {
			if m != (cluster.MAC{}) {
				t.Errorf("%q: %v, and yet %s", s, err, m)
			}
			return
		}
		if m.String() != strings.ToLower(s) {
			t.Errorf("%q is read as %s", s, m)
		}
	})
}
