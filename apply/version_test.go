package apply_test

import (
	"testing"

	"hairpin/apply"
)

func TestNeedVersion(t *testing.T) {
	for _, c := range []struct{ version, oldest, want string }{
		{"3.5.0", "3.5", ""},
		{"3.10.0", "3.5", ""},
		{"4.0.0", "3.5", ""},
		{"25.3.0", "25.03", ""},
		{"26.3", "25.03", ""},
		{"1.0.6", "1.0.6", ""},
		{"1.1", "1.0.6", ""},
		{"3.4.1", "3.5", "it 3.4.1 is running; 3.5 or newer is needed"},
		{"2.17.9", "3.5", "it 2.17.9 is running; 3.5 or newer is needed"},
		{"24.09.2", "25.03", "it 24.09.2 is running; 25.03 or newer is needed"},
		{"1.0.2", "1.0.6", "it 1.0.2 is running; 1.0.6 or newer is needed"},
		{"ovs", "3.5", `it reports "ovs", which is no version; 3.5 or newer is needed`},
		{"", "3.5", `it reports "", which is no version; 3.5 or newer is needed`},
	} {
		got := ""
		if err := apply.NeedVersion("it", c.version, c.oldest); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q instead of %q", c.version, got, c.want)
		}
	}
}
