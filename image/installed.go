package image

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// lockedPackages has the version of every package of the node image. `make image-lock` updates them
// to Debian's current versions.
//
//go:embed packages.lock
var lockedPackages string

// debian13Packages is the lock of the image with the Open vSwitch and OVN of Debian 13.
//
//go:embed debian13.lock
var debian13Packages string

// debPackage is a package that is installed in a root file system.
type debPackage struct {
	Name, Version, Architecture string
	Source, SourceVersion       string // the source package
}

// installedPackages reads dpkg's list of a root file system, sorted by name.
func installedPackages(root string) ([]debPackage, error) {
	f, err := os.Open(filepath.Join(root, "var/lib/dpkg/status"))
	if err != nil {
		return nil, fmt.Errorf("installed packages: %w", err)
	}
	defer func() { _ = f.Close() }()
	var list []debPackage
	var p debPackage
	status := ""
	end := func() {
		if strings.HasSuffix(status, " installed") {
			if p.Source == "" {
				p.Source = p.Name
			}
			if p.SourceVersion == "" {
				p.SourceVersion = p.Version
			}
			list = append(list, p)
		}
		p, status = debPackage{}, ""
	}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "":
			end()
		case "Package":
			p.Name = value
		case "Version":
			p.Version = value
		case "Architecture":
			p.Architecture = value
		case "Status":
			status = value
		case "Source": // NAME, or NAME (VERSION)
			name, version, _ := strings.Cut(value, " ")
			p.Source, p.SourceVersion = name, strings.Trim(version, "()")
		}
	}
	end()
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("installed packages: %w", err)
	}
	slices.SortFunc(list, func(a, b debPackage) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// lockOf returns the text of packages.lock for a root file system: a package and its version per
// line.
func lockOf(root string) (string, error) {
	list, err := installedPackages(root)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, p := range list {
		fmt.Fprintln(&b, p.Name, p.Version)
	}
	return b.String(), nil
}

// locked returns the list's lock in the format of lockOf, or "" for a list without one.
func (l List) locked() string {
	arch := cmp.Or(l.Arch, runtime.GOARCH)
	switch l.Name {
	case nodeImage:
		return linesFor(lockedPackages, arch)
	case debian13Name:
		return linesFor(debian13Packages, arch)
	}
	return ""
}

// lockFile returns the name of the list's lock.
func (l List) lockFile() string {
	if l.Name == debian13Name {
		return "debian13.lock"
	}
	return "packages.lock"
}

// linesFor returns the lines of a lock for an architecture, in the format of lockOf.
func linesFor(lock, arch string) string {
	var b strings.Builder
	for line := range strings.Lines(lock) {
		if f := strings.Fields(line); len(f) == 2 || f[2] == arch {
			fmt.Fprintln(&b, f[0], f[1])
		}
	}
	return b.String()
}

// joinLocks returns the text of packages.lock. A package that differs between architectures has a
// line for each.
func joinLocks(locks map[string]string) string {
	on := map[string][]string{} // line of lockOf → architectures
	for arch, lock := range locks {
		for line := range strings.Lines(lock) {
			on[strings.TrimSpace(line)] = append(on[strings.TrimSpace(line)], arch)
		}
	}
	var b strings.Builder
	for _, line := range slices.Sorted(maps.Keys(on)) {
		if len(on[line]) == len(locks) {
			fmt.Fprintln(&b, line)
			continue
		}
		for _, arch := range slices.Sorted(slices.Values(on[line])) {
			fmt.Fprintln(&b, line, arch)
		}
	}
	return b.String()
}

// WriteLock builds a node image from Debian's current packages for all architectures, and writes
// its lock.
func (l List) WriteLock(ctx context.Context, cacheDir, file string, progress func(line string)) error {
	tmp, err := os.MkdirTemp(cacheDir, ".lock-")
	if err != nil {
		return fmt.Errorf("lock packages: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	locks := map[string]string{}
	for _, arch := range architectures() {
		root, err := l.on(arch).Build(ctx, tmp, progress)
		if err != nil {
			return err
		}
		if locks[arch], err = lockOf(root); err != nil {
			return err
		}
	}
	if err := os.WriteFile(file, []byte(joinLocks(locks)), 0o644); err != nil {
		return fmt.Errorf("lock packages: %w", err)
	}
	return nil
}

// newer returns the differences of a root file system's packages from a lock in the format of
// lockOf: "openvswitch-switch 3.5.0-1 → 3.5.0-2".
func newer(root, lock string) ([]string, error) {
	now, err := installedPackages(root)
	if err != nil {
		return nil, err
	}
	had := map[string]string{}
	for line := range strings.Lines(lock) {
		name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		had[name] = version
	}
	var list []string
	for _, p := range now {
		if had[p.Name] != p.Version {
			list = append(list, fmt.Sprintf("%s %s → %s", p.Name, had[p.Name], p.Version))
		}
		delete(had, p.Name)
	}
	for name, version := range had {
		list = append(list, fmt.Sprintf("%s %s → none", name, version))
	}
	slices.Sort(list)
	return list, nil
}

// checkLocked returns an error if a root file system has versions of Open vSwitch or OVN that are
// not those of the list's lock, and so are not tested.
func (l List) checkLocked(root string) error {
	changed, err := newer(root, l.locked())
	if err != nil {
		return err
	}
	changed = slices.DeleteFunc(changed, func(change string) bool { return !isSwitch(change) })
	if len(changed) > 0 {
		return fmt.Errorf("the versions of Open vSwitch and OVN are not those of image/%s: %s; `make image-lock` takes "+
			"them, test them then", l.lockFile(), strings.Join(changed, ", "))
	}
	return nil
}

// Open vSwitch has its own image, whose tag changes only with its content. Thus an upgrade of the
// rest leaves Open vSwitch running, with every connection that it tracks. A security update of one
// of its packages changes the content.

// OVSTag returns the tag of Open vSwitch's image with the packages of root file systems, each of
// another architecture. For other architectures, it uses the list's lock.
func (l List) OVSTag(roots ...string) (string, error) {
	locks := map[string]string{}
	for _, arch := range architectures() {
		locks[arch] = l.on(arch).locked()
	}
	for _, root := range roots {
		list, err := installedPackages(root)
		if err != nil {
			return "", err
		}
		i := slices.IndexFunc(list, func(p debPackage) bool { return p.Architecture != "all" })
		if i < 0 {
			return "", fmt.Errorf("%s has no packages", root)
		}
		if locks[list[i].Architecture], err = lockOf(root); err != nil {
			return "", err
		}
	}
	return ovsTag(joinLocks(locks)), nil
}

func ovsTag(lock string) string {
	sum := sha256.New()
	fmt.Fprintln(sum, layerRules, Suite, Variant, lock)
	for _, name := range ovsScripts() {
		text, err := entries.ReadFile("entry/" + name)
		if err != nil {
			panic(err) // it is embedded
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
	}
	return Suite + "-" + hex.EncodeToString(sum.Sum(nil))[:10]
}
