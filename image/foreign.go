package image

import (
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A tree for another architecture is built without running its programs. Debian's packages are
// unpacked and recorded as dpkg does. The files that package scripts write are copied from this
// machine's tree of the same packages. These are text and links, equal on all architectures; a
// program is an error.

// architectures returns the architectures of the container images, as Debian and Go name them.
func architectures() []string { return []string{"amd64", "arm64"} }

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg" // debootstrap's

// Apt writes a configuration of apt for an architecture in dir, with Debian's current package
// lists. apt commands use it through $APT_CONFIG. Apt neither reads nor changes this machine's own
// apt.
func Apt(ctx context.Context, dir, arch string) (config string, err error) {
	from, err := findMirror(ctx)
	if err != nil {
		return "", err
	}
	return apt(ctx, dir, arch, from, false)
}

func apt(ctx context.Context, dir, arch string, from mirror, withUnstable bool) (config string, err error) {
	for _, d := range []string{"etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/lib/apt/lists/partial",
		"var/cache/apt/archives/partial", "var/lib/dpkg"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	config = filepath.Join(dir, "apt.conf")
	status := filepath.Join(dir, "var/lib/dpkg/status")
	err = errors.Join(err, os.WriteFile(status, nil, 0o644),
		os.WriteFile(filepath.Join(dir, "etc/apt/sources.list"),
			[]byte(from.sources(withUnstable, "signed-by="+keyring)), 0o644),
		os.WriteFile(filepath.Join(dir, pinsPath), []byte(preferences), 0o644),
		os.WriteFile(config, fmt.Appendf(nil, `Dir %q;
Dir::State::status %q;
APT::Architecture %q;
APT::Architectures { %q; };
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
`, dir, status, arch, arch), 0o644))
	if err != nil {
		return "", err
	}
	return config, withApt(ctx, config, "apt-get", "--quiet", "update")
}

// output returns what a command writes on stdout. The error has what it wrote on stderr.
func output(cmd *exec.Cmd) ([]byte, error) {
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w\n%s", err, exit.Stderr)
	}
	return out, err
}

// withApt runs an apt command with a configuration of Apt.
func withApt(ctx context.Context, config string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "APT_CONFIG="+config)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// unpack fills a tree with the packages of the list for another architecture. native is the tree of
// the same list for this machine.
func (l List) unpack(ctx context.Context, dir, native string, from mirror, progress func(string)) error {
	work := dir + "-apt"
	defer os.RemoveAll(work)
	progress(l.Arch + ": lists of packages")
	config, err := apt(ctx, work, l.Arch, from, l.Unstable)
	if err != nil {
		return err
	}
	progress(l.Arch + ": packages")
	// minbase, and the packages of the list
	get := append([]string{"apt-get", "--quiet", "--yes", "--download-only", "install", "?priority(required)", "apt"},
		l.Packages...)
	if err := withApt(ctx, config, get...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(work, "var/cache/apt/archives/*.deb"))
	if err != nil {
		return err
	}
	// First the package that has the links from /bin, /lib and /sbin to /usr.
	if i := slices.IndexFunc(debs, func(deb string) bool {
		return strings.HasPrefix(filepath.Base(deb), "base-files_")
	}); i >= 0 {
		debs = slices.Concat(debs[i:i+1], debs[:i], debs[i+1:])
	}
	var database []stanza
	for i, deb := range debs {
		progress(fmt.Sprintf("%s: unpacked %d of %d packages", l.Arch, i, len(debs)))
		s, err := unpackDeb(ctx, deb, dir, filepath.Join(work, "control"))
		if err != nil {
			return err
		}
		database = append(database, s)
	}
	if err := writeStatus(dir, native, database); err != nil {
		return err
	}
	progress(l.Arch + ": what the packages' scripts write")
	return copyScriptResults(ctx, native, dir, l.Arch)
}

// unpackDeb unpacks a package and records its files and scripts. It returns the package's part of
// dpkg's status.
func unpackDeb(ctx context.Context, deb, dir, control string) (stanza, error) {
	const script = `set -o pipefail; dpkg-deb --fsys-tarfile "$1" | tar --extract --verbose --quoting-style=literal --preserve-permissions --numeric-owner \
		--keep-directory-symlink --directory "$2" && rm -rf "$3" && dpkg-deb --control "$1" "$3"`
	out, err := output(exec.CommandContext(ctx, "bash", "-c", script, "unpack", deb, dir, control))
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
	}
	text, err := os.ReadFile(filepath.Join(control, "control"))
	if err != nil {
		return nil, err
	}
	s := parseStanza(string(text))
	name := s.value("Package")
	if s.value("Multi-Arch") == "same" {
		name += ":" + s.value("Architecture")
	}
	infoPath := func(kind string) string { return filepath.Join(dir, "var/lib/dpkg/info", name+"."+kind) }
	var list strings.Builder
	for line := range strings.Lines(string(out)) {
		path := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "."), "/")
		if path == "" {
			path = "/."
		}
		fmt.Fprintln(&list, path)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(infoPath("list")), 0o755),
		os.WriteFile(infoPath("list"), []byte(list.String()), 0o644)); err != nil {
		return nil, err
	}
	files, err := os.ReadDir(control)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if f.Name() == "control" {
			continue
		}
		if err := os.Rename(filepath.Join(control, f.Name()), infoPath(f.Name())); err != nil {
			return nil, err
		}
	}
	conffiles, err := checksums(dir, infoPath("conffiles"))
	if err != nil {
		return nil, err
	}
	return append(s, field{"Status", " install ok installed\n"}, field{"Conffiles", conffiles}), nil
}

// checksums returns the configuration files of a package with their MD5, as in dpkg's status.
func checksums(dir, list string) (string, error) {
	names, err := os.ReadFile(list)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	text := "\n"
	for line := range strings.Lines(string(names)) {
		name := strings.TrimSpace(line)
		if gone, ok := strings.CutPrefix(name, "remove-on-upgrade "); ok { // a file of an earlier version
			text += " " + gone + " newconffile remove-on-upgrade\n"
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf(" %s %x\n", name, md5.Sum(content))
	}
	return text, nil
}

// stanza is a package's part of dpkg's status. Values include the space before them and the end of
// the line.
type stanza []field

type field struct{ name, value string }

func parseStanza(text string) (s stanza) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, " ") && len(s) > 0 {
			s[len(s)-1].value += line
		} else if name, value, ok := strings.Cut(line, ":"); ok {
			s = append(s, field{name, value})
		}
	}
	return s
}

func (s stanza) value(name string) string {
	for _, f := range s {
		if f.name == name {
			return strings.TrimSpace(f.value)
		}
	}
	return ""
}

// writeStatus writes dpkg's list of installed packages, in dpkg's order. Priorities come from this
// machine's tree, which has those of the archive; packages may have others.
func writeStatus(dir, native string, database []stanza) error {
	text, err := os.ReadFile(filepath.Join(native, "var/lib/dpkg/status"))
	if err != nil {
		return err
	}
	priority := map[string]string{}
	for part := range strings.SplitSeq(string(text), "\n\n") {
		s := parseStanza(part)
		priority[s.value("Package")] = s.value("Priority")
	}
	order := strings.Fields("Package Essential Protected Status Priority Section Installed-Size Origin Maintainer " +
		"Bugs Architecture Multi-Arch Source Version " +
		"Replaces Provides Depends Pre-Depends Recommends Suggests Breaks Conflicts Enhances Conffiles Description")
	slices.SortFunc(database, func(a, b stanza) int { return strings.Compare(a.value("Package"), b.value("Package")) })
	var status strings.Builder
	at := func(f field) int {
		if i := slices.Index(order, f.name); i >= 0 {
			return i
		}
		return len(order)
	}
	for _, s := range database {
		slices.SortStableFunc(s, func(a, b field) int { return at(a) - at(b) })
		for _, f := range s {
			if known := priority[s.value("Package")]; f.name == "Priority" && known != "" {
				f.value = " " + known + "\n"
			}
			if f.value != "" {
				status.WriteString(f.name + ":" + f.value)
			}
		}
		status.WriteString("\n")
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, "var/lib/dpkg/status"), []byte(status.String()), 0o644),
		os.WriteFile(filepath.Join(dir, "var/lib/dpkg/info/format"), []byte("1\n"), 0o644))
}

// copyScriptResults copies the results of packages' scripts from this machine's tree: files of no
// package, and folders that differ from those of the packages.
func copyScriptResults(ctx context.Context, native, dir, arch string) error {
	packaged, err := listed(native)
	if err != nil {
		return err
	}
	var made strings.Builder
	err = filepath.WalkDir(native, func(file string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(native, file)
		switch {
		case err != nil || name == ".":
			return err
		case leftOut(name, d) || name == "var/lib/dpkg/info":
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case name == "var/lib/dpkg/status":
			return nil
		case packaged[name]:
			if same, err := sameFolder(file, filepath.Join(dir, name)); same || err != nil {
				return err
			}
		case d.Type().IsRegular():
			if err := noProgram(file); err != nil {
				return err
			}
		}
		made.WriteString(name + "\x00")
		return nil
	})
	if err != nil {
		return err
	}
	const script = `set -o pipefail; tar --create --directory "$1" --null --no-recursion --files-from=- | tar --extract --preserve-permissions --numeric-owner --directory "$2"`
	cmd := exec.CommandContext(ctx, "bash", "-c", script, "copy", native, dir)
	cmd.Stdin = strings.NewReader(made.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("copy what scripts made: %w\n%s", err, out)
	}
	return os.WriteFile(filepath.Join(dir, "var/lib/dpkg/arch-native"), []byte(arch+"\n"), 0o644)
}

// listed returns the paths of all packages of a tree.
func listed(root string) (map[string]bool, error) {
	lists, err := filepath.Glob(filepath.Join(root, "var/lib/dpkg/info/*.list"))
	if err != nil {
		return nil, err
	}
	paths := map[string]bool{}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			paths[strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "/")] = true
		}
	}
	return paths, nil
}

// sameFolder reports whether a folder of packages is the same in both trees. It removes a folder
// that is no folder in the native tree.
func sameFolder(native, foreign string) (bool, error) {
	is, err := os.Lstat(native)
	if err != nil {
		return false, err
	}
	was, err := os.Lstat(foreign)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (!was.IsDir() || was.Mode() == is.Mode()) {
		return true, nil
	}
	if err == nil && !is.IsDir() {
		err = os.Remove(foreign)
	}
	return false, err
}

func noProgram(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	start := make([]byte, 4)
	n, _ := f.Read(start) // a file may be empty
	if string(start[:n]) == "\x7fELF" {
		return fmt.Errorf("%s is in no package and is a program or a library of this machine's architecture", file)
	}
	return nil
}
