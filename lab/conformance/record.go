package conformance

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
)

// interrupted is the type of an error that is no result of a spec: the run was interrupted.
const interrupted = "interrupted"

// record saves the results of specs over several runs of some of them each. Each spec has a line,
// sorted, with its full name, which FOCUS matches. A run replaces the lines of its specs; lines
// that begin with # stay above all others.
func record(file string, results []result) error {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var out strings.Builder
	lines := map[string]string{} // by spec
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			out.WriteString(line)
		} else if name, what, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); ok {
			lines[name] = what
		}
	}
	for _, r := range results {
		if r.Error == nil || r.Error.Type != interrupted {
			lines[r.Name] = r.what()
		}
	}
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(&out, "%s\t%s\n", name, lines[name])
	}
	return os.WriteFile(file, []byte(out.String()), 0o644)
}
