package uplink

import (
	"encoding/json"
	"reflect"
	"testing"
)

// FuzzMemory: for any text in the Bridge row, there is a memory of a device that is written and
// read again as it is.
func FuzzMemory(f *testing.F) {
	f.Add(`{"sysctls":{"net/ipv4/ip_forward":"0"},"offloads":[27],"addresses":[{"prefix":"172.18.0.3/16"}]}`)
	f.Add("")
	f.Add(`{"addresses":[{}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		had, _ := parseMemory(text)
		written, err := json.Marshal(had)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		again, err := parseMemory(string(written))
		if err != nil {
			t.Fatalf("%q: written as %s: %v", text, written, err)
		}
		if rewritten, _ := json.Marshal(again); string(rewritten) != string(written) {
			t.Errorf("%+v came back as %+v", had, again)
		}
		for _, a := range again.Addresses {
			if !a.Prefix.IsValid() {
				t.Errorf("%q: %v", text, reflect.ValueOf(a))
			}
		}
	})
}
