package targets

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the table of docs/reference/compatibility.md")

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		version   string
		userspace bool
		want      int
	}{{"3.5.0", true, 5}, {"3.5.0", false, 1}, {"3.5.1", false, 1}, {"3.5.1", true, 5}, {"3.5.2", false, 0},
		{"3.6.3", true, 3}, {"3.7.0", true, 2}, {"4.0.0", true, 1}, {"4.0.0", false, 0}} {
		if got := Faults(c.version, c.userspace, false); len(got) != c.want {
			t.Errorf("%s, userspace %v: %d faults, not %d: %q", c.version, c.userspace, len(got), c.want, got)
		}
	}
}

// TestFaultsTSO checks that bugs of TSO are reported only if TSO is used.
func TestFaultsTSO(t *testing.T) {
	for version, want := range map[string]int{"3.5.0": 6, "3.5.1": 5, "4.0.0": 1} {
		if got := Faults(version, true, true); len(got) != want {
			t.Errorf("%s: %d faults, not %d: %q", version, len(got), want, got)
		}
	}
}

// TestFaultsDocument checks that the table in the documents matches the code.
func TestFaultsDocument(t *testing.T) {
	const file, begin, end = "../docs/reference/compatibility.md", "<!-- faults -->\n", "<!-- end of faults -->"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", file)
	}
	var b strings.Builder
	b.WriteString("| Open vSwitch | datapath | fault | evidence |\n|---|---|---|---|\n")
	for _, f := range faults() {
		versions, datapath := "all, up to 4.0.0", "both"
		if f.fixed != "" {
			versions = "before " + f.fixed
		}
		if f.since != "" {
			versions = "from " + f.since + ", " + versions
		}
		if f.datapath != "" {
			datapath = f.datapath
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", versions, datapath, f.effect, f.evidence)
	}
	want := head + begin + b.String() + end + tail
	if want == string(text) {
		return
	}
	if !*update {
		t.Errorf("the table in %s is not that of the code (-update rewrites it)", file)
	} else if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
