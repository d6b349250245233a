package image

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// mirrorVariable overrides the mirror, for machines without Debian's in their apt configuration
// (such as Ubuntu).
const mirrorVariable = "HAIRPIN_MIRROR"

// mirror has the sources of packages.
type mirror struct {
	archive  string
	security string // security updates; empty = none
}

// sources returns the lines of sources.list, with options for each; those of unstable if asked for.
func (m mirror) sources(withUnstable bool, options ...string) string {
	var text strings.Builder
	add := func(archive, suite string, options ...string) {
		if len(options) > 0 {
			archive = "[" + strings.Join(options, " ") + "] " + archive
		}
		fmt.Fprintf(&text, "deb %s %s main\n", archive, suite)
	}
	add(m.archive, Suite, options...)
	add(m.archive, Suite+"-updates", options...)
	if m.security != "" {
		add(m.security, Suite+"-security", options...)
	}
	if withUnstable {
		// A mirror may lag behind by more than the week that unstable's index is valid. As with
		// debootstrap, its signature counts. The locks have the versions that were tested.
		add(m.archive, unstable, append(options, "check-valid-until=no")...)
	}
	return text.String()
}

// preferences are those of apt: of unstable, Open vSwitch and OVN are installed, and packages that
// they need and the release lacks.
const (
	preferences = "Package: *\nPin: release n=" + unstable + "\nPin-Priority: 50\n\n" +
		"Package: openvswitch-* ovn-*\nPin: release n=" + unstable + "\nPin-Priority: 990\n"
	pinsPath = "etc/apt/preferences.d/unstable"
)

// findMirror returns the Debian mirror that apt on this machine is configured to use. The
// environment variable HAIRPIN_MIRROR overrides it.
func findMirror(ctx context.Context) (mirror, error) {
	if archive := os.Getenv(mirrorVariable); archive != "" {
		return mirror{archive, securityBeside(archive)}, nil
	}
	out, err := output(exec.CommandContext(ctx, "apt-get", "indextargets", "Created-By: Packages", "Component: main"))
	if err != nil {
		return mirror{}, fmt.Errorf("ask apt for its mirrors: %w", err)
	}
	archive := chooseMirror(out)
	if archive == "" {
		return mirror{}, errors.New("apt is configured with no Debian mirror (apt-get indextargets shows none); set " +
			mirrorVariable)
	}
	return mirror{archive, cmp.Or(chooseSecurity(out), securityBeside(archive))}, nil
}

// securityBeside returns the security archive at its usual place on mirrors of Debian.
func securityBeside(archive string) string {
	if base, ok := strings.CutSuffix(strings.TrimRight(archive, "/"), "/debian"); ok {
		return base + "/debian-security"
	}
	return ""
}

// chooseSecurity returns the first source of Debian's security archive.
func chooseSecurity(targets []byte) string {
	for target := range strings.SplitSeq(string(targets), "\n\n") {
		f := targetFields(target)
		if strings.HasSuffix(f["Release"], "-security") &&
			(f["Origin"] == "Debian" || strings.Contains(f["Repo-URI"], "/debian-security")) {
			return f["Repo-URI"]
		}
	}
	return ""
}

// chooseMirror returns the first source of Debian's main archive in the output of apt-get
// indextargets. The origin is known after apt has fetched the indexes; before, the path of the
// archive is used.
func chooseMirror(targets []byte) string {
	var byOrigin, byPath string
	for target := range strings.SplitSeq(string(targets), "\n\n") {
		f := targetFields(target)
		uri := f["Repo-URI"]
		if uri == "" || strings.Contains(f["Release"], "-") { // -updates, -security, -backports
			continue
		}
		if f["Origin"] == "Debian" && byOrigin == "" {
			byOrigin = uri
		}
		if f["Origin"] == "" && byPath == "" && strings.HasSuffix(strings.TrimRight(uri, "/"), "/debian") {
			byPath = uri
		}
	}
	if byOrigin != "" {
		return byOrigin
	}
	return byPath
}

// targetFields reads one target of the output of apt-get indextargets.
func targetFields(target string) map[string]string {
	f := map[string]string{}
	sc := bufio.NewScanner(strings.NewReader(target))
	for sc.Scan() {
		if key, value, ok := strings.Cut(sc.Text(), ":"); ok {
			f[key] = strings.TrimSpace(value)
		}
	}
	return f
}
