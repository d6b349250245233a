package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
)

// frrK8sModule is the Go module of frr-k8s, which lab/frrk8s requires.
const frrK8sModule = "github.com/metallb/frr-k8s"

// asNumber is the format of AS numbers in the resource definition, which does not fit their
// maximum: the API server of KubeVersion rejects each object then.
var asNumber = regexp.MustCompile(`(?m)^ *format: int32\n(?: *maximum: 4294967295\n)`)

// FRRDefinition returns a resource definition of frr-k8s, such as "frrconfigurations".
func FRRDefinition(ctx context.Context, resource string) ([]byte, error) {
	dir, err := nestedModule(ctx, "frrk8s")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", frrK8sModule)
	cmd.Dir = dir
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("download %s: %w", frrK8sModule, err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(text, &module); err != nil {
		return nil, fmt.Errorf("download %s: %w", frrK8sModule, err)
	}
	text, err = os.ReadFile(filepath.Join(module.Dir, "config/crd/bases/frrk8s.metallb.io_"+resource+".yaml"))
	return asNumber.ReplaceAll(text, nil), err
}

// BuildFRRK8s builds the program frr-k8s in a directory, and returns its path. The first build
// takes minutes.
func BuildFRRK8s(ctx context.Context, dir string) (string, error) {
	program := filepath.Join(dir, "frr-k8s")
	return program, buildNested(ctx, "frrk8s", frrK8sModule+"/cmd/frr-k8s-controller", program)
}
