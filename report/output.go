package report

import (
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// PrintAs writes v if output is a format for programs, json or yaml, and reports whether it is one.
// Both have the names of v's JSON tags.
func PrintAs(w io.Writer, output string, v any) (bool, error) {
	var text []byte
	var err error
	switch output {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return true, e.Encode(v)
	case "yaml":
		text, err = yaml.Marshal(v)
	default:
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("format as %s: %w", output, err)
	}
	_, err = w.Write(text)
	return true, err
}
