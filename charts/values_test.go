// Package charts_test checks the Helm chart: its values against the options of the program, its
// rendered objects, and that a real API server accepts these.
package charts_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"hairpin/config"
)

var update = flag.Bool("update", false,
	"rewrite the part of the values and their schema that comes from the program's options")

const (
	valuesFile = "hairpin/values.yaml"
	schemaFile = "hairpin/values.schema.json"
	// begins the part of values.yaml that is generated from the options
	generated = "# The configuration file of node and controller"
)

// ours reports whether the chart itself sets an option, so that it is not a value: these options
// are paths in its pods.
func ours(o config.Option) bool {
	return slices.Contains([]string{"default node", "default run-dir", "default ovs-run-dir", "default ovn-run-dir",
		"kubernetes kubeconfig", "kubernetes manifests"}, o.Section+" "+o.Key)
}

// options returns the options that are values, section by section.
func options() (sections []string, of map[string][]config.Option) {
	of = map[string][]config.Option{}
	for _, o := range config.Options() {
		if ours(o) {
			continue
		}
		if of[o.Section] == nil {
			sections = append(sections, o.Section)
		}
		of[o.Section] = append(of[o.Section], o)
	}
	return sections, of
}

func takes(o config.Option, value string) bool {
	c := config.DefaultConfig()
	return o.Set(&c, value) == nil
}

// limits returns the smallest and the largest number that an option accepts; it accepts all
// between.
func limits(o config.Option, some int) (least, most int) {
	least, most = some, some
	for step := 1 << 30; step > 0; step /= 2 {
		if least-step >= 0 && takes(o, strconv.Itoa(least-step)) {
			least -= step
		}
		if takes(o, strconv.Itoa(most+step)) {
			most += step
		}
	}
	return least, most
}

// words returns the values that an option accepts, from the end of its description.
func words(o config.Option) []string {
	_, list, ok := strings.Cut(o.Usage, ": ")
	if !ok || takes(o, "no such word") {
		return nil
	}
	all := strings.Split(list, ", ")
	for _, w := range all {
		if !takes(o, w) {
			return nil
		}
	}
	return all
}

// schemaOf returns an option's part of the schema. It tests which values the option accepts.
func schemaOf(o config.Option) map[string]any {
	s := map[string]any{"description": o.Usage, "type": "string"}
	if n, err := strconv.Atoi(o.Default()); err == nil && !takes(o, "x") {
		least, most := limits(o, n)
		s["type"], s["minimum"], s["maximum"] = "integer", float64(least), float64(most)
		switch {
		case takes(o, "0.5"):
			s["type"] = []any{"number", "string"} // Helm's --set treats fractions as strings
		case takes(o, "1h"):
			s["type"] = []any{"integer", "string"} // a duration, or 0
		}
	} else if _, err := strconv.ParseBool(o.Default()); err == nil {
		s["type"] = "boolean"
	} else if w := words(o); w != nil {
		delete(s, "type")
		s["enum"] = w
	}
	return s
}

// configPart returns the part of values.yaml and of the schema that is generated from the options.
func configPart() (text string, schema map[string]any) {
	var b strings.Builder
	b.WriteString(generated +
		": its sections and keys, which docs/reference/configuration.md describes.\n# Made by `go test ./charts " +
		"-run Values -update`.\nconfig:\n")
	sections, of := options()
	properties := map[string]any{}
	for _, s := range sections {
		fmt.Fprintf(&b, "  # Section [%s].\n  %s:\n", s, s)
		keys := map[string]any{}
		for _, o := range of[s] {
			kind := schemaOf(o)
			value := o.Default()
			if t := kind["type"]; t == "string" || t == nil {
				value = strconv.Quote(value)
			}
			fmt.Fprintf(&b, "    # %s\n    %s: %s\n", strings.ToUpper(o.Usage[:1])+o.Usage[1:], o.Key, value)
			keys[o.Key] = kind
		}
		properties[s] = map[string]any{"type": "object", "additionalProperties": false, "properties": keys}
	}
	return b.String(), map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

// TestValuesAreTheOptions checks that values.yaml and its schema have exactly the program's
// options.
func TestValuesAreTheOptions(t *testing.T) {
	text, schema := configPart()
	values, hand := read(t, valuesFile), map[string]any{}
	at := bytes.Index(values, []byte(generated))
	if at < 0 {
		at = len(values)
	}
	must(t, json.Unmarshal(read(t, schemaFile), &hand))
	properties := hand["properties"].(map[string]any)
	if *update {
		text = string(values[:at]) + text
		must(t, os.WriteFile(valuesFile, []byte(text), 0o644))
		properties["config"] = schema
		var out bytes.Buffer
		e := json.NewEncoder(&out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		must(t, e.Encode(hand))
		must(t, os.WriteFile(schemaFile, out.Bytes(), 0o644))
		return
	}
	const remedy = "is out of date (go test ./charts -run Values -update):"
	if diff := cmp.Diff(strings.Split(string(values[at:]), "\n"), strings.Split(text, "\n")); diff != "" {
		t.Errorf("%s %s\n%s", valuesFile, remedy, diff)
	}
	want, err := json.Marshal(schema)
	must(t, err)
	var plain any
	must(t, json.Unmarshal(want, &plain))
	if diff := cmp.Diff(properties["config"], plain); diff != "" {
		t.Errorf("%s %s\n%s", schemaFile, remedy, diff)
	}
}

// TestValuesAreDocumented checks that every key has a comment and is in the schema, and that the
// schema has no other. No other keys are allowed in the chart's own mappings.
func TestValuesAreDocumented(t *testing.T) {
	var values, schema map[string]any
	must(t, yaml.Unmarshal(read(t, valuesFile), &values))
	must(t, json.Unmarshal(read(t, schemaFile), &schema))
	lines := strings.Split(string(read(t, valuesFile)), "\n")
	var visit func(path string, v, s map[string]any)
	visit = func(path string, v, s map[string]any) {
		properties, ours := s["properties"].(map[string]any)
		if !ours { // a Kubernetes object: it has its own keys
			return
		}
		if s["additionalProperties"] != false {
			t.Errorf("%s: the schema takes unknown keys", path)
		}
		for k := range properties {
			if _, ok := v[k]; !ok && k != "global" && k != "limits" {
				t.Errorf("%s%s: is in the schema, not in the values", path, k)
			}
		}
		for k, x := range v {
			p, ok := properties[k].(map[string]any)
			if !ok {
				t.Errorf("%s%s: is in the values, not in the schema", path, k)
				continue
			}
			indent := strings.Repeat("  ", strings.Count(path, "."))
			i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, indent+k+":") })
			if k != "requests" && (i < 1 || !strings.HasPrefix(strings.TrimSpace(lines[i-1]), "#")) {
				t.Errorf("%s%s: has no comment", path, k)
			}
			if child, ok := x.(map[string]any); ok {
				visit(path+k+".", child, p)
			}
		}
	}
	visit("", values, schema)
}

// TestConfigurationOfTheChart checks that the file of the chart's default values has the program's
// defaults.
func TestConfigurationOfTheChart(t *testing.T) {
	if got := configuration(t, render(t)); !reflect.DeepEqual(got, config.DefaultConfig()) {
		t.Errorf("got  %+v\nwant %+v", got, config.DefaultConfig())
	}
	got := configuration(t, render(t, "config.default.mtu=1300", "config.gateway.nodeport=false",
		"config.default.conntrack-tcp-timeout-established=24h",
		`config.kubernetes.service-cidrs=10.97.0.0/16\,fd01::/112`))
	want := config.DefaultConfig()
	for _, o := range config.Options() {
		for key, value := range map[string]string{"mtu": "1300", "nodeport": "false",
			"conntrack-tcp-timeout-established": "24h", "service-cidrs": "10.97.0.0/16,fd01::/112"} {
			if o.Key == key {
				must(t, o.Set(&want, value))
			}
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	return text
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
