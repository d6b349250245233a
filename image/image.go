// Package image builds the root file system of a Hairpin node: Debian 13 with Open vSwitch and OVN
// of Debian's unstable, or with its own.
//
// packages.txt lists the packages of a node. The lab mounts its nodes as overlays over the tree
// that [Build] makes, and the container image has the same packages.
package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// Suite is the Debian release of the image, which has security updates. Open vSwitch and OVN
	// are of unstable, because those of the release have known faults
	// (docs/reference/compatibility.md). The release has the libraries that they need.
	Suite    = "trixie"
	unstable = "sid"
	// Variant is the set of base packages that debootstrap starts from.
	Variant = "minbase"
	// DefaultDir is where the lab keeps images.
	DefaultDir = "/var/cache/hairpin"

	nodeImage = "image"

	// Debian13 names the node image with the Open vSwitch and OVN of Debian 13: 3.5.0 and 25.03.
	Debian13     = "debian13"
	debian13Name = nodeImage + "-" + Debian13
)

//go:embed packages.txt
var packageList string

// List is a root file system to build: the base system and these packages.
type List struct {
	Name     string // of the symlink to the current tree, and prefix of its directory's name
	Packages []string
	Arch     string // another architecture than this machine's; see foreign.go. Empty means this machine's.
	Unstable bool   // whether Open vSwitch and OVN are those of unstable
}

// ofUnstable reports whether a package of the list is that of unstable; see the constant
// preferences.
func (l List) ofUnstable(name string) bool {
	return l.Unstable && isSwitch(name)
}

// isSwitch reports whether a package is part of Open vSwitch or OVN.
func isSwitch(name string) bool {
	return strings.HasPrefix(name, "openvswitch-") || strings.HasPrefix(name, "ovn-")
}

// ReadPackages reads a list of packages: one name per line, and comments from # to the end of the
// line.
func ReadPackages(text string) []string {
	var names []string
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(line, "#")
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// node returns the list of the node image.
func node() List { return List{Name: nodeImage, Packages: ReadPackages(packageList), Unstable: true} }

// on returns the same list for an architecture; empty means this machine's.
func (l List) on(arch string) List {
	if arch == runtime.GOARCH {
		arch = ""
	}
	l.Arch = arch
	return l
}

// Node returns the list of the node image with the Open vSwitch and OVN of unstable (ovs is empty)
// or of Debian 13 (Debian13).
func Node(ovs string) (List, error) {
	l := node()
	switch ovs {
	case "":
		return l, nil
	case Debian13:
		l.Name, l.Unstable = debian13Name, false
		return l, nil
	}
	return l, fmt.Errorf("%q is no Open vSwitch of a node image: it is empty (unstable's) or %s", ovs, Debian13)
}

func (l List) root(cacheDir string) string {
	text := Suite + " " + Variant + " " + strings.Join(l.Packages, " ")
	if l.Unstable {
		text += "\n" + unstable
	}
	if lock := l.locked(); lock != "" {
		text += "\n" + lock // each lock has its own tree
	}
	if l.Arch != "" {
		text += l.on("").root("") // it contains parts of that tree
	}
	sum := sha256.Sum256([]byte(text))
	return filepath.Join(cacheDir, l.link()+"-"+hex.EncodeToString(sum[:6]))
}

// link returns the name of the symlink to the tree.
func (l List) link() string { return strings.TrimSuffix(l.Name+"-"+l.Arch, "-") }

// Build returns the root directory of the node image. It makes the image if cacheDir does not have
// it.
//
// A new image takes about a minute and 300 MB, from the Debian mirror of this machine's own apt
// configuration. It gets its name only when it is complete, and then the symlink "image" in
// cacheDir points to it. Concurrent callers, also in other processes, wait for the one that builds.
// progress, which may be nil, gets a line for each step. Build needs root and debootstrap.
func Build(ctx context.Context, cacheDir string, progress func(line string)) (string, error) {
	return node().Build(ctx, cacheDir, progress)
}

// Build is the function Build for another list.
func (l List) Build(ctx context.Context, cacheDir string, progress func(line string)) (string, error) {
	if progress == nil {
		progress = func(string) {}
	}
	root := l.root(cacheDir)
	if isDir(root) && l.pointsTo(cacheDir, root) {
		return root, nil
	}
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return "", fmt.Errorf("make image cache: %w", err)
	}
	fill := l.bootstrap
	if l.Arch != "" {
		native, err := l.on("").Build(ctx, cacheDir, progress)
		if err != nil {
			return "", err
		}
		fill = func(ctx context.Context, dir string, from mirror, progress func(string)) error {
			return l.unpack(ctx, dir, native, from, progress)
		}
	}
	unlock, err := flock(ctx, filepath.Join(cacheDir, ".image.lock"), progress)
	if err != nil {
		return "", fmt.Errorf("lock image cache: %w", err)
	}
	defer unlock()
	if !isDir(root) {
		if err := l.create(ctx, cacheDir, root, fill, progress); err != nil {
			return "", fmt.Errorf("build image: %w", err)
		}
	}
	if err := l.pointTo(cacheDir, root); err != nil {
		return "", fmt.Errorf("link current image: %w", err)
	}
	return root, nil
}

// create fills a temporary directory beside root and renames it.
func (l List) create(ctx context.Context, cacheDir, root string,
	fill func(context.Context, string, mirror, func(string)) error, progress func(string)) error {
	leftovers, err := filepath.Glob(filepath.Join(cacheDir, ".image-*"))
	if err != nil {
		return err
	}
	for _, dir := range leftovers { // of a build that was killed: the lock is held here
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove unfinished image: %w", err)
		}
	}
	from, err := findMirror(ctx)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(cacheDir, ".image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := fill(ctx, tmp, from, progress); err != nil {
		return err
	}
	if err := clean(tmp); err != nil {
		return err
	}
	if lock := l.locked(); lock != "" {
		changed, err := newer(tmp, lock)
		if err != nil {
			return err
		}
		if len(changed) > 0 {
			progress(fmt.Sprintf("Debian has other versions than image/%s (`make image-lock` takes them): %s",
				l.lockFile(), strings.Join(changed, ", ")))
		}
	}
	return os.Rename(tmp, root)
}

// bootstrap fills a tree for this machine.
func (l List) bootstrap(ctx context.Context, dir string, from mirror, progress func(string)) error {
	progress(fmt.Sprintf("debootstrap %s from %s", Suite, from.archive))
	if err := l.debootstrap(ctx, dir, from.archive, progress); err != nil {
		return err
	}
	return l.upgrade(ctx, dir, from, progress)
}

// debootstrap runs in its own mount namespace: the kernel removes its mounts when it ends.
func (l List) debootstrap(ctx context.Context, dir, mirror string, progress func(string)) error {
	total := ""
	if lock := l.locked(); lock != "" {
		total = fmt.Sprintf(" of %d", strings.Count(lock, "\n"))
	}
	count := map[string]int{}
	return inMounts(exec.CommandContext(ctx, "debootstrap", "--variant="+Variant,
		"--include="+strings.Join(slices.DeleteFunc(slices.Clone(l.Packages), l.ofUnstable), ","),
		Suite, dir, mirror), func(line string) {
		did, about, _ := strings.Cut(strings.TrimPrefix(line, "I: "), " ")
		switch {
		case !strings.HasPrefix(line, "I: "), did == "Validating", did == "Extracting":
		case did == "Retrieving" && strings.Contains(about, " "), (did == "Unpacking" || did == "Configuring") &&
			!strings.Contains(about, " "): // a package
			count[did]++
			progress(fmt.Sprintf("%s %d%s packages", strings.ToLower(did), count[did], total))
		default:
			progress(did + " " + about)
		}
	})
}

// upgradeScript runs in the tree, which has no init: policy-rc.d keeps packages from starting
// daemons. Its arguments are the packages of the list.
const upgradeScript = `set -e
mount -t proc proc /proc
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
apt-get --quiet update
export DEBIAN_FRONTEND=noninteractive
apt-get --quiet --yes --no-install-recommends upgrade
apt-get --quiet --yes --no-install-recommends install "$@"
rm -f /usr/sbin/policy-rc.d`

// upgrade installs what debootstrap does not read: updates and security updates of the release, and
// packages of unstable.
func (l List) upgrade(ctx context.Context, dir string, from mirror, progress func(string)) error {
	if from.security == "" {
		progress("no security archive is known: the image has no security updates")
	}
	file, pins := filepath.Join(dir, "etc/apt/sources.list"), filepath.Join(dir, pinsPath)
	before, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	resolver, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(file, []byte(from.sources(l.Unstable)), 0o644),
		os.WriteFile(pins, []byte(preferences), 0o644),
		os.WriteFile(filepath.Join(dir, "etc/resolv.conf"), resolver, 0o644)); err != nil {
		return err
	}
	progress("updates and security updates")
	script := append([]string{dir, "sh", "-c", upgradeScript, "upgrade"}, l.Packages...)
	if err := inMounts(exec.CommandContext(ctx, "chroot", script...), func(line string) {
		if did, name, _ := strings.Cut(line, " "); did == "Unpacking" || did == "Setting" {
			progress("updates: " + did + " " + name)
		}
	}); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(file, before, 0o644), os.Remove(pins))
}

// inMounts runs a command in its own mount namespace, and kills its process group when ctx ends.
// The error has the last lines of the output.
func inMounts(cmd *exec.Cmd, each func(line string)) error {
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	var tail []string
	out := &lines{each: func(line string) {
		if tail = append(tail, line); len(tail) > 10 {
			tail = tail[1:]
		}
		each(line)
	}}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, strings.Join(tail, "\n"))
	}
	return nil
}

// clean removes files of the build that a node does not need.
func clean(dir string) error {
	for _, pattern := range []string{"var/cache/apt/archives/*.deb", "var/cache/apt/*.bin", "var/lib/apt/lists/*_*",
		"var/log/*.log", "etc/openvswitch/conf.db", "var/lib/dpkg/*-old", "var/lib/apt/extended_states", "etc/*-",
		"etc/resolv.conf", "etc/hostname"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, p := range paths {
			if err := os.Remove(p); err != nil {
				return fmt.Errorf("clean image: %w", err)
			}
		}
	}
	return nil
}

// pointTo replaces the symlink atomically.
func (l List) pointTo(cacheDir, root string) error {
	if l.pointsTo(cacheDir, root) {
		return nil
	}
	tmp := filepath.Join(cacheDir, ".link")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Base(root), tmp); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(cacheDir, l.link()))
}

func (l List) pointsTo(cacheDir, root string) bool {
	target, err := os.Readlink(filepath.Join(cacheDir, l.link()))
	return err == nil && target == filepath.Base(root)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// lines is a writer that passes on whole lines.
type lines struct {
	each func(string)
	part []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.part = append(l.part, p...)
	for {
		i := bytes.IndexByte(l.part, '\n')
		if i < 0 {
			return len(p), nil
		}
		l.each(string(l.part[:i]))
		l.part = l.part[i+1:]
	}
}
