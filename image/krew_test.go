package image_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestKrew checks the manifest for krew: each archive has its architecture, its address and its
// checksum.
func TestKrew(t *testing.T) {
	dir := t.TempDir()
	args := []string{"v0.2.0", "https://example.net/v0.2.0"}
	for _, arch := range []string{"amd64", "arm64"} {
		file := filepath.Join(dir, "kubectl-hairpin-linux-"+arch+".tar.gz")
		if err := os.WriteFile(file, []byte(arch), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, file)
	}
	text, err := exec.CommandContext(t.Context(), "./krew.sh", args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Kind string
		Spec struct {
			Version   string
			Platforms []struct {
				Selector struct{ MatchLabels struct{ OS, Arch string } }
				URI, Bin string
				Sha256   string
			}
		}
	}
	if err := yaml.Unmarshal(text, &m); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	got := fmt.Sprint(m.Kind, " ", m.Spec.Version)
	for _, p := range m.Spec.Platforms {
		l := p.Selector.MatchLabels
		got += fmt.Sprintf(" %s %s %s %s %s", l.OS, l.Arch, p.URI, p.Bin, p.Sha256)
	}
	want := "Plugin v0.2.0"
	for _, arch := range []string{"amd64", "arm64"} {
		want += fmt.Sprintf(" linux %s https://example.net/v0.2.0/kubectl-hairpin-linux-%s.tar.gz kubectl-hairpin %x",
			arch, arch, sha256.Sum256([]byte(arch)))
	}
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
