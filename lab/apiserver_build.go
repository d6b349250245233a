package lab

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// KubeVersion is the version that the built server reports; it is the version in kube/go.mod.
const KubeVersion = "v1.37.1"

// kubeBuildFlags returns constant flags, so that equal sources give an equal binary. Without a
// version the server reports v0.0.0 and clients reject it. The build date is that of the release.
func kubeBuildFlags() []string {
	link := []string{"-s", "-w", "-X k8s.io/client-go/pkg/version.gitVersion=" + KubeVersion}
	for _, v := range []string{
		"gitVersion=" + KubeVersion, "gitMajor=1", "gitMinor=37", "gitCommit=" + KubeVersion,
		"gitTreeState=archive", "buildDate=2026-09-23T17:06:22Z",
	} {
		link = append(link, "-X k8s.io/component-base/version."+v)
	}
	return []string{"-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags=" + strings.Join(link, " ")}
}

// BuildKube returns the path of a hairpin-kube binary built from lab/kube, building it in cacheDir
// when it is not there.
//
// The cache key is a hash of the sources, the build flags and the Go version. A first build takes
// about six minutes of two cores and puts some 600 MB into the module cache; a second call takes a
// few milliseconds. Any number of processes may call it at once: one builds, the others wait.
// progress gets a line of text every few seconds while there is something to wait for; it may be
// nil.
//
// The sources are found in the module of the working directory (go env GOMOD), else where this file
// was compiled; they must be in one of the two, as a nested module cannot be embedded.
func BuildKube(ctx context.Context, cacheDir string, progress func(string)) (binary string, err error) {
	return buildKube(ctx, cacheDir, "hairpin-kube", ".", progress)
}

// BuildKubeProxy does the same for Kubernetes' own kube-proxy, from lab/kube/proxy.
func BuildKubeProxy(ctx context.Context, cacheDir string, progress func(string)) (binary string, err error) {
	return buildKube(ctx, cacheDir, "hairpin-kube-proxy", "proxy", progress)
}

// buildKube builds a package of the nested module, a program of that name.
func buildKube(ctx context.Context, cacheDir, name, pkg string, progress func(string)) (binary string, err error) {
	if progress == nil {
		progress = func(string) {}
	}
	src, err := nestedModule(ctx, "kube")
	if err != nil {
		return "", fmt.Errorf("finding the sources of %s: %w", name, err)
	}
	key, err := kubeKey(ctx, src, pkg)
	if err != nil {
		return "", fmt.Errorf("hashing the sources of %s: %w", name, err)
	}
	dir := filepath.Join(cacheDir, "kube")
	binary = filepath.Join(dir, name+"-"+key)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making the cache of %s: %w", name, err)
	}
	unlock, err := lockFile(ctx, filepath.Join(dir, "lock"),
		func() { progress("waiting for another build of Kubernetes") })
	if err != nil {
		return "", fmt.Errorf("locking the cache of %s: %w", name, err)
	}
	defer unlock()
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	partial := binary + ".partial"
	defer func() { _ = os.Remove(partial) }() // already renamed if the build succeeded
	if err := goBuild(ctx, src, pkg, partial, progress); err != nil {
		return "", fmt.Errorf("building %s: %w", name, err)
	}
	if err := os.Rename(partial, binary); err != nil {
		return "", fmt.Errorf("keeping the built %s: %w", name, err)
	}
	return binary, nil
}

// nestedModule returns the directory of a module in lab.
func nestedModule(ctx context.Context, name string) (string, error) {
	var tried []string
	if out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output(); err == nil {
		tried = append(tried, filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "lab", name))
	}
	if _, file, _, ok := runtime.Caller(0); ok {
		tried = append(tried, filepath.Join(filepath.Dir(file), name))
	}
	for _, dir := range tried {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no go.mod in any of %v; run it inside the repository", tried)
}

// buildNested builds a package of a module that is nested in the sources, with its versions.
func buildNested(ctx context.Context, module, pkg, to string) error {
	from, err := nestedModule(ctx, module)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", to, pkg)
	cmd.Dir, cmd.Env = from, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, text)
	}
	return nil
}

// kubeKey hashes all inputs of the build of a package of src.
func kubeKey(ctx context.Context, src, pkg string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH")
	cmd.Dir = src
	goVersion, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("asking go for its version: %w", err)
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%s%q", goVersion, kubeBuildFlags())
	files := []string{"go.mod", "go.sum"}
	sources, err := filepath.Glob(filepath.Join(src, pkg, "*.go")) // sorted
	if err != nil {
		return "", err
	}
	for _, s := range sources {
		files = append(files, filepath.Join(pkg, filepath.Base(s)))
	}
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(hash, "%s %d\n%s", name, len(data), data)
	}
	return hex.EncodeToString(hash.Sum(nil))[:16], nil
}

// lockFile takes an exclusive flock, calling waiting once when it is not free at once.
func lockFile(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for first := true; ; first = false {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing releases the lock
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(&fs.PathError{Op: "flock", Path: path, Err: err}, f.Close())
		}
		if first {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// goBuild builds a package of src to binary.
func goBuild(ctx context.Context, src, pkg, binary string, progress func(string)) error {
	args := append([]string{"build", "-v", "-o", binary}, kubeBuildFlags()...)
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+pkg)...)
	cmd.Dir = src
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	output, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	// The build keeps every core busy for minutes: lower its priority, if possible.
	_ = unix.Setpriority(unix.PRIO_PROCESS, cmd.Process.Pid, 5)
	messages := watchBuild(output, progress)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args[:2], " "), err, strings.Join(messages, "\n"))
	}
	return nil
}

// watchBuild reads the output of go build -v to its end, reports progress, and returns the last
// lines that are neither the name of a package nor a download: the compiler's errors.
func watchBuild(output io.Reader, progress func(string)) (messages []string) {
	const keep, period = 40, 5 * time.Second
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(output); s.Scan(); {
			lines <- s.Text()
		}
	}()
	start, tick := time.Now(), time.NewTicker(period)
	defer tick.Stop()
	var downloads, packages int
	for {
		select {
		case line, more := <-lines:
			switch {
			case !more:
				return messages
			case strings.HasPrefix(line, "go: downloading "):
				downloads++
			case !strings.ContainsAny(line, " \t"):
				packages++
			default:
				messages = append(messages, line)
				messages = messages[max(0, len(messages)-keep):]
			}
		case <-tick.C:
			progress(fmt.Sprintf("building (minutes, once): %d modules downloaded, %d packages compiled, %s",
				downloads, packages, time.Since(start).Round(time.Second)))
		}
	}
}
