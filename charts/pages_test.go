package charts_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"hairpin/lab/chart"
)

// valuesBlock matches a file of values in a page, which may be indented in a list.
var valuesBlock = regexp.MustCompile("(?m)^ *```yaml\n( *)# values.yaml\n((?:.*\n)*?) *```$")

// TestValuesInPages checks that the chart accepts every values.yaml of the documentation, and that
// the program accepts the configuration that the chart makes of it.
func TestValuesInPages(t *testing.T) {
	blocks := inPages(t, valuesBlock, func(page, values string) {
		file := filepath.Join(t.TempDir(), "values.yaml")
		must(t, os.WriteFile(file, []byte(values), 0o600))
		args := []string{"template", "hairpin", "hairpin", "--namespace", chart.Namespace, "--values", file}
		if !strings.Contains(values, "apiServer:") {
			args = append(args, "--set", "apiServer.host=172.18.0.10")
		}
		for _, s := range chart.Images {
			args = append(args, "--set", s)
		}
		out, problem, err := helmDoes(t, args...)
		if err != nil {
			t.Errorf("%s: %v: %s%s", page, err, problem, values)
			return
		}
		objects, err := chart.Objects(out)
		must(t, err)
		configuration(t, objects)
	})
	if blocks < 6 {
		t.Errorf("only %d files of values are in the documentation", blocks)
	}
}

// yamlBlock matches YAML in a page, which may be indented in a list.
var yamlBlock = regexp.MustCompile("(?m)^( *)```yaml\n((?:.*\n)*?) *```$")

// TestYAMLInPages checks that all YAML of the documentation is valid and has no duplicate keys.
func TestYAMLInPages(t *testing.T) {
	blocks := inPages(t, yamlBlock, func(page, text string) {
		if _, err := chart.Objects(text); err != nil {
			t.Errorf("%s: %v\n%s", page, err, text)
		}
	})
	if blocks < 20 {
		t.Errorf("only %d blocks of YAML are in the documentation", blocks)
	}
}

// inPages calls do for each block of the documentation that a pattern matches, and returns their
// number. The first group of the pattern is the indentation of the block, and the second its text.
func inPages(t *testing.T, pattern *regexp.Regexp, do func(page, text string)) (blocks int) {
	must(t, filepath.WalkDir("../docs", func(page string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(page) != ".md" {
			return err
		}
		text, err := os.ReadFile(page)
		must(t, err)
		for _, m := range pattern.FindAllStringSubmatch(string(text), -1) {
			blocks++
			do(page, strings.ReplaceAll("\n"+m[2], "\n"+m[1], "\n"))
		}
		return nil
	}))
	return blocks
}
