package agent_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestProgramRefuses: the program itself names unknown arguments, and exits.
func TestProgramRefuses(t *testing.T) {
	hairpin := build(t)
	conf := filepath.Join(t.TempDir(), "hairpin.conf")
	if err := os.WriteFile(conf, []byte("[gateway]\nmoed=shared\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"controller", "--gateway-moed=shared"}, "unknown flag: --gateway-moed"},
		{[]string{"node", "--gateway-mode=shraed"}, `--gateway-mode: [gateway] mode: "shraed" is not one of shared`},
		{[]string{"node", "--config-file", conf}, "[gateway] moed is not an option"},
		{[]string{"plan", "-f", "x", "--gateway-v4-masquerade-subnet=169.254.169.0/30"},
			"169.254.169.0/30 is too small: /29 or larger"},
	} {
		out, err := exec.CommandContext(t.Context(), hairpin, c.args...).CombinedOutput()
		said, _, _ := strings.Cut(string(out), "\n")
		if err == nil || !strings.Contains(said, c.want) || strings.Count(string(out), "\n") > 3 { // and the usage
			t.Errorf("%v: %v, %s", c.args, err, out)
		}
	}
}
