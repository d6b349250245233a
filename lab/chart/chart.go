// Package chart provides tests with the contents of the chart: its objects, rendered by the real
// Helm, and the identities of its pods.
package chart

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Namespace is the namespace that the chart is rendered for.
const Namespace = "hairpin"

// Root returns the folder of the checkout.
var Root = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the checkout: go env GOMOD: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
})

// Helm returns the path of Helm, which it builds from charts/helm if it is not there yet.
var Helm = sync.OnceValues(func() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "bin", "helm")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "make", "-C", root, "bin/helm").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build Helm: %w: %s", err, out)
	}
	return path, nil
})

// RunHelm runs Helm in the folder of charts, without a cluster and without a home, and returns its
// output.
func RunHelm(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	path, err := Helm()
	if err != nil {
		return "", "", err
	}
	root, err := Root()
	if err != nil {
		return "", "", err
	}
	home, err := os.MkdirTemp("", "helm")
	if err != nil {
		return "", "", err
	}
	defer func() { _ = os.RemoveAll(home) }()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = filepath.Join(root, "charts")
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home,
		"KUBECONFIG="+filepath.Join(home, "none"))
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

// Images are the values that name images, which have no default.
var Images = []string{"image.repository=registry.example/net/hairpin", "openvswitch.image.tag=trixie-1"}

// Template renders the chart with Images and values as of --set, without the pod of `helm test`,
// and returns Helm's output.
func Template(ctx context.Context, set ...string) (text, problem string, err error) {
	args := []string{"template", "hairpin", "hairpin", "--namespace", Namespace, "--skip-tests"}
	for _, s := range slices.Concat(Images, set) {
		args = append(args, "--set", s)
	}
	return RunHelm(ctx, args...)
}

// Render returns the objects of the chart.
func Render(ctx context.Context, set ...string) ([]*unstructured.Unstructured, error) {
	text, problem, err := Template(ctx, append([]string{"apiServer.host=172.18.0.10"}, set...)...)
	if err != nil {
		return nil, fmt.Errorf("render the chart: %w: %s", err, problem)
	}
	return Objects(text)
}

// Objects reads the objects of a manifest.
func Objects(text string) (all []*unstructured.Unstructured, err error) {
	for _, doc := range strings.Split(text, "\n---") {
		o := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(doc), &o.Object); err != nil {
			return nil, fmt.Errorf("read a manifest: %w", err)
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
	return all, nil
}
