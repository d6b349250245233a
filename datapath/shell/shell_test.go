package shell_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hairpin/datapath/shell"
)

// A real shell reads the original words.
func TestWordsAreTheShells(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		character := rapid.OneOf(rapid.SampledFrom([]rune("ab '\"\\$`;&|<>()*?~#!={}[]%\t\n\x01\x7fé")),
			rapid.RuneFrom([]rune("xyz")))
		words := rapid.SliceOfN(rapid.StringOfN(character, 0, 15, -1), 1, 6).Draw(t, "words")
		var quoted []string
		for _, w := range words {
			quoted = append(quoted, shell.Word(w))
		}
		line := strings.Join(quoted, " ")
		out, err := exec.Command("bash", "-c", `printf '%s\0' `+line).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
		if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); !slices.Equal(got, words) {
			t.Errorf("bash reads %s as %q, want %q", line, got, words)
		}
		if strings.Contains(line, "\n") {
			t.Errorf("%q is not one line", line)
		}
	})
}
