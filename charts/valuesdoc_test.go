package charts_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	yaml3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

const aboutValues = `# Helm values

This page lists every value of the chart, with its type and default. Set values in a file:

` + "```" + `yaml
# values.yaml
apiServer: {host: 10.0.0.10}
config:
  gateway: {mode: local}
` + "```" + `

` + "```" + `
helm upgrade hairpin hairpin-0.2.0.tgz --namespace hairpin --reset-then-reuse-values --values values.yaml
helm get values hairpin --namespace hairpin    # the values that you set
` + "```" + `

A value that is not listed is an error. The type "string map" is an object with strings as values,
"object" one with the keys of the Kubernetes API.
`

const aboutChart = `# Hairpin

Hairpin is a Kubernetes network plugin that also replaces kube-proxy, on OVN and Open vSwitch.

` + "```" + `
kubectl create namespace hairpin
kubectl label namespace hairpin pod-security.kubernetes.io/enforce=privileged
helm install hairpin CHART --namespace hairpin --set apiServer.host=ADDRESS
helm test hairpin --namespace hairpin
` + "```" + `

A cluster has one release, because it sets up the nodes themselves. So the names of its objects are
fixed, and there is no nameOverride. Before an upgrade, apply the CustomResourceDefinitions, which
Helm installs only the first time:

` + "```" + `
helm show crds CHART | kubectl apply --server-side --force-conflicts --filename -
helm upgrade hairpin CHART --namespace hairpin --reset-then-reuse-values
` + "```" + `

## Values

A value that is not listed is an error.
`

const aboutConfig = `
## config

The keys below config are the sections and keys of the [configuration file](configuration.md) of
agent and controller, without those that the chart itself sets.
`

// typeOf describes the values that a schema accepts.
func typeOf(s map[string]any) string {
	if list, ok := s["enum"].([]any); ok {
		var words []string
		for _, w := range list {
			words = append(words, fmt.Sprintf("`%v`", w))
		}
		return strings.Join(words, ", ")
	}
	switch t := s["type"].(type) {
	case []any:
		return strings.Trim(strings.ReplaceAll(fmt.Sprint(t), " ", " or "), "[]")
	case string:
		least, most := s["minimum"], s["maximum"]
		switch {
		case least != nil && most != nil:
			return fmt.Sprintf("%s, %.0f to %.0f", t, least, most)
		case least != nil:
			return fmt.Sprintf("%s, %.0f or more", t, least)
		case t == "object" && s["additionalProperties"] != nil:
			if s["properties"] == nil {
				return "string map"
			}
		case t == "array":
			if items, ok := s["items"].(map[string]any); ok && items["type"] == "string" {
				return "list of strings"
			}
			return "list of objects"
		}
		return t
	}
	return "any"
}

// writeValues writes a row for each value below a mapping of values.yaml.
func writeValues(t *testing.T, b *strings.Builder, path string, mapping *yaml3.Node, schema map[string]any) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		s, _ := properties[key.Value].(map[string]any)
		_, nested := s["properties"]
		if nested && key.Value != "resources" {
			writeValues(t, b, path+key.Value+".", value, s)
			continue
		}
		var x any
		must(t, value.Decode(&x))
		text, err := yaml.Marshal(x)
		must(t, err)
		defaults := strings.TrimSpace(string(text))
		if strings.Contains(defaults, "\n") {
			defaults = "see values.yaml"
		} else {
			defaults = "`" + defaults + "`"
		}
		meaning := strings.Join(strings.FieldsFunc(key.HeadComment, func(r rune) bool { return r == '\n' || r == '#' }),
			"")
		fmt.Fprintf(b, "| `%s%s` | %s | %s | %s |\n", path, key.Value, typeOf(s), defaults, strings.TrimSpace(meaning))
	}
}

// TestValuesDocument checks docs/reference/helm-values.md and the chart's README, which are
// generated from values.yaml and its schema: `go test ./charts -run Values -update` first rewrites
// these two, because tests run in the order of their files.
func TestValuesDocument(t *testing.T) {
	var document yaml3.Node
	must(t, yaml3.Unmarshal(read(t, valuesFile), &document))
	var schema map[string]any
	must(t, yaml.Unmarshal(read(t, schemaFile), &schema))
	all := document.Content[0]
	i := slices.IndexFunc(all.Content, func(n *yaml3.Node) bool { return n.Value == "config" })
	conf := all.Content[i+1]
	rest := *all
	rest.Content = slices.Delete(slices.Clone(all.Content), i, i+2)
	var b strings.Builder
	table := func(path string, mapping *yaml3.Node, s map[string]any) {
		b.WriteString("\n| value | type | default | meaning |\n|---|---|---|---|\n")
		writeValues(t, &b, path, mapping, s)
	}
	for path, about := range map[string][2]string{
		"../docs/reference/helm-values.md": {aboutValues, aboutConfig},
		"hairpin/README.md": {aboutChart, strings.Replace(aboutConfig, "[configuration file](configuration.md)",
			"configuration file", 1)},
	} {
		b.Reset()
		b.WriteString(about[0])
		table("", &rest, schema)
		b.WriteString(about[1])
		table("config.", conf, schema["properties"].(map[string]any)["config"].(map[string]any))
		b.WriteString("\n<!-- Made by `go test ./charts -run Values -update`. -->\n")
		if *update {
			must(t, os.WriteFile(path, []byte(b.String()), 0o644))
		}
		if diff := cmp.Diff(strings.Split(string(read(t, path)), "\n"), strings.Split(b.String(), "\n")); diff != "" {
			t.Errorf("%s is out of date (go test ./charts -run Values -update):\n%s", path, diff)
		}
	}
}
