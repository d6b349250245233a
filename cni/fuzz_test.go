package cni

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/cni/veth"
	"hairpin/ovsdb"
)

// FuzzAttachment: for any external_ids of an Interface, the parsed attachment is written and parsed
// again as it is.
func FuzzAttachment(f *testing.F) {
	good := attachment{network: "hairpin", container: "0123", uid: "u",
		Pair: veth.Pair{IfName: "eth0", MAC: cluster.MAC{2, 1, 2, 3, 4, 5}}}
	good.pod.Namespace, good.pod.Name = "default", "web"
	good.Addresses = []netip.Prefix{netip.MustParsePrefix("10.244.1.3/24"),
		netip.MustParsePrefix("fd00:10:244:1::3/64")}
	var lines []string
	for key, value := range good.ids() {
		lines = append(lines, key+"="+value)
	}
	f.Add(strings.Join(lines, "\n"))
	f.Add(keyName + "=x\n" + keyMAC + "=02:01\n" + keyAddresses + "=10.0.0.1,,/,::/129")
	f.Fuzz(func(t *testing.T, text string) {
		row := &ovsdb.Interface{Name: "h0", ExternalIDs: map[string]string{}}
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			row.ExternalIDs[key] = value
		}
		a := parseAttachment(row)
		for _, p := range a.toPod("n").IPs {
			if !p.IsValid() {
				t.Errorf("%v has no address", a)
			}
		}
		if len(a.Addresses) == 0 {
			return
		}
		if again := parseAttachment(&ovsdb.Interface{Name: "h0", ExternalIDs: a.ids()}); !reflect.DeepEqual(again, a) {
			t.Errorf("%+v came back as %+v", a, again)
		}
	})
}
