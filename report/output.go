package report

import (
	"encoding/json"
	"io"

	"sigs.k8s.io/yaml"
)

// ForPrograms reports whether output is a format for programs: json or yaml.
func ForPrograms(output string) bool { return output == "json" || output == "yaml" }

// PrintAs writes v if output is a format for programs, json or yaml, and reports whether it is one.
// Both have the names of v's JSON tags.
func PrintAs(w io.Writer, output string, v any) (bool, error) {
	if !ForPrograms(output) {
		return false, nil
	}
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return true, e.Encode(v)
	}
	text, err := yaml.Marshal(v)
	if err == nil {
		_, err = w.Write(text)
	}
	return true, err
}
