package conformance

import (
	"context"
	_ "embed"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"hairpin/image"
	"hairpin/lab/probe"
)

//go:embed packages.txt
var packageList string

// archive is the path of the images, below Root. Each run of a suite writes it.
const archive = "dist/conformance-images.tar"

// writeImages writes the images that network tests use, under the names that the suite requires.
func (r *run) writeImages(ctx context.Context) error {
	list := image.List{Name: "conformance", Packages: image.ReadPackages(packageList)}
	root, err := list.Build(ctx, image.DefaultDir, func(line string) { r.say("images: %s", line) })
	if err != nil {
		return err
	}
	names, err := r.images(ctx, r)
	if err != nil {
		return err
	}
	applets, err := r.output(ctx, filepath.Join(root, "usr/bin/busybox"), "--list")
	if err != nil {
		return err
	}
	var all []image.Made
	for _, name := range names {
		if m, ok := r.made(name, root, strings.Fields(applets)); ok {
			all = append(all, m)
		}
	}
	return image.WriteMade(ctx, image.DefaultDir, filepath.Join(r.root, archive), all...)
}

// made returns the contents of an image. ok is false if no network test uses the image.
func (r *run) made(name, root string, applets []string) (m image.Made, ok bool) {
	repository, _, _ := strings.Cut(path.Base(name), ":")
	m.Name, m.Programs, m.Links = name, map[string]string{}, map[string]string{}
	coredns := filepath.Join(r.root, "bin", "coredns")
	switch repository {
	case "agnhost", "cyclonus-worker":
		m.Root = root
		m.Programs["coredns"], m.Links["agnhost-2"] = coredns, "agnhost"
		for _, file := range []string{"localhost.crt", "localhost.key"} {
			m.Programs[file] = r.program(file)
		}
		agnhost := "agnhost"
		if repository == "cyclonus-worker" {
			agnhost, m.Programs["worker"] = "probes", r.program("worker")
		}
		if !probe.HasSCTP() {
			agnhost += "-sctp"
		}
		m.Programs["agnhost"] = r.program(agnhost)
		m.Start = v1.ImageConfig{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}
	case "glibc-dns-testing":
		m.Root, m.Programs["coredns"] = root, coredns
		m.Start = v1.ImageConfig{Cmd: []string{"bash"}}
	case "nginx":
		m.Root = root
		m.Start = v1.ImageConfig{Cmd: []string{"sh", "-c", "mkdir -p /var/log/nginx && exec nginx -g 'daemon off;'"}}
	case "busybox":
		m.Programs["bin/busybox"] = filepath.Join(root, "usr/bin/busybox")
		for _, applet := range applets {
			if applet != "busybox" {
				m.Links["bin/"+applet] = "busybox"
			}
		}
		m.Start = v1.ImageConfig{Cmd: []string{"sh"}}
	case "pause":
		m.Programs["bin/pod"] = filepath.Join(r.root, "bin", "pod")
		m.Start = v1.ImageConfig{Entrypoint: []string{"/bin/pod", "pause"}}
	case "regression-issue-74839":
		m.Programs[repository] = r.program(repository)
		m.Start = v1.ImageConfig{Entrypoint: []string{"/" + repository}}
	default:
		return m, false
	}
	return m, true
}

func (r *run) output(ctx context.Context, program string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", filepath.Base(program), strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
