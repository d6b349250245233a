// Package expressions tests the chart's CEL expressions with the CEL environment of the oldest
// supported Kubernetes.
package expressions

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

const chart = "../../../charts/hairpin"

// language returns the environment in which a version of Kubernetes compiles new expressions: that
// of the previous version.
func language(t *testing.T, minor uint) *cel.Env {
	t.Helper()
	set, err := environment.MustBaseEnvSet(version.MajorMinor(1, minor-1)).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions:        []cel.EnvOption{cel.Variable("self", cel.DynType), cel.Variable("oldSelf", cel.DynType)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return set.NewExpressionsEnv()
}

// rules returns all x-kubernetes-validations of an object.
func rules(o any) (list []string) {
	switch o := o.(type) {
	case []any:
		for _, x := range o {
			list = append(list, rules(x)...)
		}
	case map[string]any:
		for k, x := range o {
			if all, ok := x.([]any); ok && k == "x-kubernetes-validations" {
				for _, r := range all {
					list = append(list, r.(map[string]any)["rule"].(string))
				}
				continue
			}
			list = append(list, rules(x)...)
		}
	}
	return list
}

// TestOldestKubernetes: the version that Chart.yaml claims understands every rule of the resource
// definitions, and the one before it does not: the claim is neither too old nor too new.
func TestOldestKubernetes(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	claim := regexp.MustCompile(`(?m)^kubeVersion: ">=(1\.\d+)\.0-0"$`).FindSubmatch(text)
	if claim == nil {
		t.Fatalf("no kubeVersion in\n%s", text)
	}
	minor := version.MustParseGeneric(string(claim[1])).Minor()
	files, err := filepath.Glob(filepath.Join(chart, "crds", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	oldest, older, refused, all := language(t, minor), language(t, minor-1), 0, 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var o any
		if err := yaml.Unmarshal(text, &o); err != nil {
			t.Fatal(err)
		}
		for _, rule := range rules(o) {
			all++
			if _, issues := oldest.Compile(rule); issues.Err() != nil {
				t.Errorf("%s: Kubernetes 1.%d refuses %s: %v", filepath.Base(file), minor, strings.TrimSpace(rule),
					issues.Err())
			}
			if _, issues := older.Compile(rule); issues.Err() != nil {
				refused++
			}
		}
	}
	t.Logf("%d rules, of which Kubernetes 1.%d refuses %d", all, minor-1, refused)
	if refused == 0 {
		t.Errorf("Kubernetes 1.%d understands all of %d rules", minor-1, all)
	}
}
