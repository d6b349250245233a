package uplink

import (
	"encoding/json"
	"reflect"
	"testing"
)

// FuzzSettings: for any text in the Bridge row, there are settings of a device that are written and
// read again as it is.
func FuzzSettings(f *testing.F) {
	f.Add(`{"sysctls":{"net/ipv4/ip_forward":"0"},"offloads":[27],"addresses":[{"prefix":"172.18.0.3/16"}]}`)
	f.Add("")
	f.Add(`{"addresses":[{}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		former, _ := parseSettings(text)
		written, err := json.Marshal(former)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		again, err := parseSettings(string(written))
		if err != nil {
			t.Fatalf("%q: written as %s: %v", text, written, err)
		}
		if rewritten, _ := json.Marshal(again); string(rewritten) != string(written) {
			t.Errorf("%+v came back as %+v", former, again)
		}
		for _, a := range again.Addresses {
			if !a.Prefix.IsValid() {
				t.Errorf("%q: %v", text, reflect.ValueOf(a))
			}
		}
	})
}
