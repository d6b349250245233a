package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"hairpin/image"
)

// BuildHairpin builds the program under test and gives its path. One that runs somewhere stays what it is.
func BuildHairpin(ctx context.Context) (string, error) {
	dir := filepath.Join(image.DefaultDir, "run-test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path, fresh := filepath.Join(dir, "hairpin"), filepath.Join(dir, fmt.Sprintf(".hairpin-%d", os.Getpid()))
	cmd := exec.CommandContext(ctx, "go", "build", "-o", fresh, "hairpin/cmd/hairpin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build hairpin: %w\n%s", err, out)
	}
	return path, os.Rename(fresh, path)
}
