package charts_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hairpin/lab/chart"
	"hairpin/lab/quickstart"
)

// TestQuickStarts renders the chart with the files and options of each quick start, also of those
// that no lab can play.
func TestQuickStarts(t *testing.T) {
	for _, page := range quickstart.Pages {
		steps, err := quickstart.Read("..", page)
		must(t, err)
		dir := t.TempDir()
		for _, s := range steps {
			if s.File != "" {
				must(t, os.WriteFile(filepath.Join(dir, filepath.Base(s.File)), []byte(s.Content), 0o644))
			}
			args, ok := strings.CutPrefix(s.Command, "helm install hairpin ")
			if !ok {
				continue
			}
			words := strings.Fields(args)
			for i := range words {
				if strings.HasSuffix(words[i], ".yaml") {
					words[i] = filepath.Join(dir, words[i])
				}
			}
			if !strings.HasSuffix(words[0], ".tgz") {
				t.Errorf("%s: %s names no chart", page, s.Command)
			}
			words = append([]string{"template", "hairpin", "hairpin"}, words[1:]...)
			for _, image := range chart.Images {
				words = append(words, "--set", image)
			}
			if page == "kubeadm" || page == "edge" { // where the chart finds the address in the cluster
				words = append(words, "--set", "apiServer.host=172.18.0.10")
			}
			if out, problem, err := chart.RunHelm(t.Context(), words...); err != nil ||
				!strings.Contains(out, "kind: DaemonSet") {
				t.Errorf("%s: %s: %v: %s", page, s.Command, err, problem)
			}
		}
	}
}
