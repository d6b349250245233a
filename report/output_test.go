package report

import (
	"math"
	"strings"
	"testing"
)

// TestPrintAs checks the formats for programs: the names are those of JSON, numbers stay whole.
func TestPrintAs(t *testing.T) {
	v := struct {
		Drift uint64   `json:"driftRepaired"`
		List  []string `json:"list,omitempty"`
	}{math.MaxInt64, []string{"a: b"}}
	for output, want := range map[string]string{
		"json": "{\n  \"driftRepaired\": 9223372036854775807,\n  \"list\": [\n    \"a: b\"\n  ]\n}\n",
		"yaml": "driftRepaired: 9223372036854775807\nlist:\n- 'a: b'\n",
		"wide": "",
	} {
		var b strings.Builder
		done, err := PrintAs(&b, output, v)
		if done != (want != "") || err != nil || b.String() != want {
			t.Errorf("%s: %v, %v\n%s", output, done, err, b.String())
		}
	}
	for _, output := range []string{"json", "yaml"} {
		if done, err := PrintAs(new(strings.Builder), output, math.NaN()); !done || err == nil {
			t.Errorf("%s of no number: %v, %v", output, done, err)
		}
	}
}
