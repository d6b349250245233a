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

// mirror has the sources of packages.
type mirror struct {
	archive  string
	security string // security updates; empty = none
}

// sources returns the lines of sources.list, with options for each.
func (m mirror) sources(options string) string {
	text := fmt.Sprintf("deb %[1]s%[2]s %[3]s main\ndeb %[1]s%[2]s %[3]s-updates main\n", options, m.archive, Suite)
	if m.security != "" {
		text += fmt.Sprintf("deb %s%s %s-security main\n", options, m.security, Suite)
	}
	return text
}

// findMirror returns the Debian mirror that apt on this machine is configured to use. The
// environment variable HAIRPIN_MIRROR overrides it.
func findMirror(ctx context.Context) (mirror, error) {
	if archive := os.Getenv(mirrorVariable); archive != "" {
		return mirror{archive, securityBeside(archive)}, nil
	}
	cmd := exec.CommandContext(ctx, "apt-get", "indextargets", "Created-By: Packages", "Component: main")
	out, err := cmd.Output()
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
	for stanza := range strings.SplitSeq(string(targets), "\n\n") {
		f := fields(stanza)
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
	for stanza := range strings.SplitSeq(string(targets), "\n\n") {
		f := fields(stanza)
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

func fields(stanza string) map[string]string {
	f := map[string]string{}
	sc := bufio.NewScanner(strings.NewReader(stanza))
	for sc.Scan() {
		if key, value, ok := strings.Cut(sc.Text(), ":"); ok {
			f[key] = strings.TrimSpace(value)
		}
	}
	return f
}
