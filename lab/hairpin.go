package lab

import (
	"context"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"

	"hairpin/image"
)

// BuildHairpin builds the program under test and returns its path, which other checkouts of the
// project do not share. Running processes keep the old file.
func BuildHairpin(ctx context.Context) (string, error) {
	checkout, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("build hairpin: go env GOMOD: %w", err)
	}
	dir := filepath.Join(image.DefaultDir, "run-test", fmt.Sprintf("%08x", crc32.ChecksumIEEE(checkout)))
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

// BuildPortmap builds the plugin portmap that Hairpin installs.
func BuildPortmap(ctx context.Context, to string) error {
	return buildNested(ctx, "../image/portmap", "github.com/containernetworking/plugins/plugins/meta/portmap", to)
}
