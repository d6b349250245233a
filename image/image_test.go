package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestPackagesNameWhatANodeNeeds(t *testing.T) {
	got := node().Packages
	for _, want := range []string{"openvswitch-switch", "ovn-central", "ovn-host", "nftables", "iproute2"} {
		if !slices.Contains(got, want) {
			t.Errorf("packages.txt lacks %s: %v", want, got)
		}
	}
	for _, name := range got {
		if strings.ContainsAny(name, " #,") {
			t.Errorf("not a package name: %q", name)
		}
	}
}

func TestChooseMirror(t *testing.T) {
	const other = "Repo-URI: http://a.example/node/\nRelease: nodistro\nOrigin: Other\n"
	const security = "Repo-URI: http://m.example/debian-security/\nRelease: bookworm-security\nOrigin: Debian\n"
	const main = "Repo-URI: http://m.example/deb/\nRelease: bookworm\nOrigin: Debian\n"
	const unfetched = "Repo-URI: http://m.example/debian/\nRelease: trixie\n"
	for name, c := range map[string]struct {
		targets []string
		want    string
	}{
		"by origin":          {[]string{other, security, main}, "http://m.example/deb/"},
		"indexes not there":  {[]string{other, unfetched}, "http://m.example/debian/"},
		"origin before path": {[]string{unfetched, main}, "http://m.example/deb/"},
		"none":               {[]string{other, security}, ""},
	} {
		if got := chooseMirror([]byte(strings.Join(c.targets, "\n"))); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestSecurityArchive checks that security updates come from apt's source, or from beside the
// archive.
func TestSecurityArchive(t *testing.T) {
	const security = "Repo-URI: http://s.example/debian-security/\nRelease: bookworm-security\nOrigin: Debian\n"
	const other = "Repo-URI: http://o.example/x/\nRelease: x-security\nOrigin: Other\n"
	if got := chooseSecurity([]byte(other + "\n" + security)); got != "http://s.example/debian-security/" {
		t.Errorf("of apt: %q", got)
	}
	for archive, want := range map[string]string{"http://m.example/debian/": "http://m.example/debian-security",
		"http://m.example/pool": ""} {
		if got := securityBeside(archive); got != want {
			t.Errorf("beside %s: %q", archive, got)
		}
	}
}

// TestBuildOfAPresentImage checks that callers return at once, and that the symlink is repaired.
func TestBuildOfAPresentImage(t *testing.T) {
	dir := t.TempDir()
	want := node().root(dir)
	if err := os.Mkdir(want, 0o755); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			got, err := Build(t.Context(), dir, nil)
			if err != nil || got != want {
				t.Errorf("got %q, %v; want %q", got, err, want)
			}
		})
	}
	wg.Wait()
	if target, err := filepath.EvalSymlinks(filepath.Join(dir, "image")); err != nil || target != want {
		t.Errorf("symlink leads to %q, %v", target, err)
	}
}

func TestBuildWaitsForTheLockUntilItsContextEnds(t *testing.T) {
	dir := t.TempDir()
	unlock, err := flock(t.Context(), filepath.Join(dir, ".image.lock"), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var said []string
	if _, err := Build(ctx, dir, func(l string) { said = append(said, l) }); err == nil {
		t.Fatal("built although another process holds the lock")
	}
	if len(said) != 1 || !strings.Contains(said[0], "waiting") {
		t.Errorf("progress was %q", said)
	}
}

// TestBuildFromNothing builds from the mirror on demand: it takes a minute and needs network.
func TestBuildFromNothing(t *testing.T) {
	if os.Getenv("HAIRPIN_BUILD_IMAGE") == "" {
		t.Skip("set HAIRPIN_BUILD_IMAGE=1 to build an image from the mirror")
	}
	dir := t.TempDir()
	// Two callers at once: one builds, the other waits and gets the same.
	var wg sync.WaitGroup
	roots, errs := make([]string, 2), make([]error, 2)
	for i := range roots {
		wg.Go(func() {
			roots[i], errs[i] = Build(t.Context(), dir, func(l string) { t.Logf("caller %d: %s", i, l) })
		})
	}
	wg.Wait()
	root := roots[0]
	if err := errors.Join(errs...); err != nil || roots[1] != root {
		t.Fatalf("got %q, %v", roots, err)
	}
	for _, f := range []string{"usr/sbin/ovs-vswitchd", "usr/bin/ovn-northd", "usr/bin/ovn-controller",
		"usr/sbin/nft"} {
		// Lstat: Debian has alternatives of ovs-vswitchd, and their links are absolute.
		if _, err := os.Lstat(filepath.Join(root, f)); err != nil {
			t.Error(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".image-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	// A second build from the same packages gives the same layer, to the byte. This holds also if
	// it is built like another architecture, without running its programs.
	again, err := Build(t.Context(), t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	foreign := node()
	foreign.Arch = runtime.GOARCH
	unpacked, err := foreign.Build(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	var sums []string
	for i, r := range []string{root, again, unpacked} {
		file := filepath.Join(dir, fmt.Sprintf("layer%d.tar", i))
		b, err := writeLayer(file, func(l *layer) error { return l.tree(t.Context(), r) })
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, b.Digest.String())
	}
	for i := range sums {
		if sums[i] != sums[0] {
			out, _ := exec.Command("sh", "-c",
				fmt.Sprintf("cd %s && mkdir a b && tar xf layer0.tar -C a && tar xf layer%d.tar -C b && diff -r "+
					"--no-dereference a b | head -50", dir, i)).CombinedOutput()
			t.Errorf("build %d is another layer, %v:\n%s", i, sums, out)
		}
	}
}

// TestUnpackError checks that the error for a file that is no package has what dpkg-deb says.
func TestUnpackError(t *testing.T) {
	dir := t.TempDir()
	deb := filepath.Join(dir, "broken.deb")
	if err := os.WriteFile(deb, []byte("no archive"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := unpackDeb(t.Context(), deb, dir, filepath.Join(dir, "control"))
	if err == nil || !strings.Contains(err.Error(), "dpkg-deb: error") {
		t.Errorf("the error is %v", err)
	}
}
