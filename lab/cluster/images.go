package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"hairpin/image"
	"hairpin/lab"
)

// Names of the images in the cluster, as containerd keeps them.
const (
	HairpinImage = "docker.io/library/hairpin:dev"
	PodImage     = "docker.io/library/pod:dev"
	PauseImage   = "docker.io/library/pause:dev"
	DNSImage     = "docker.io/library/coredns:dev"
)

// hairpinArchive is what `make image-oci` writes, below the root of the sources.
const hairpinArchive = "dist/hairpin-image.tar"

// smallImages writes the images of one program each, and returns the files of all images.
func (c *Cluster) smallImages() ([]string, error) {
	hairpin := hairpinArchive
	if c.opt.Release != "" {
		var err error
		if hairpin, err = c.ReleaseImages(c.opt.Release); err != nil {
			return nil, err
		}
	}
	files := []string{filepath.Join(c.opt.Root, hairpin)}
	for _, i := range []struct {
		name, program string
		args          []string
	}{
		{"pod:dev", "pod", []string{"/bin/pod"}},
		{"pause:dev", "pod", []string{"/bin/pod", "pause"}},
		{"coredns:dev", "coredns", []string{"/bin/coredns"}},
	} {
		program := filepath.Join(c.opt.Root, "bin", i.program)
		out := filepath.Join(c.opt.Root, "dist", strings.TrimSuffix(i.name, ":dev")+"-image.tar")
		if err := image.WriteProgram(out, i.name, program, i.args...); err != nil {
			return nil, err
		}
		files = append(files, out)
	}
	return files, nil
}

// template returns a /var/lib/containerd with all images. containerd fills it once for the same
// images; nodes get a copy that shares its files (see copyTree).
func (c *Cluster) template(ctx context.Context, root string, files []string) (string, error) {
	key := sha256.New()
	fmt.Fprintln(key, filepath.Base(root))
	for _, f := range files {
		if err := hashStart(key, f); err != nil {
			return "", err
		}
	}
	dir := filepath.Join(image.DefaultDir, "containerd-"+hex.EncodeToString(key.Sum(nil))[:16])
	unlock, err := lockFile(ctx, filepath.Join(image.DefaultDir, ".containerd.lock"))
	if err != nil {
		return "", fmt.Errorf("lock the cache of images: %w", err)
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	old, err := filepath.Glob(filepath.Join(image.DefaultDir, "containerd-*"))
	if err != nil {
		return "", err
	}
	for _, d := range old { // of earlier images; nodes have their own links to the files
		if err := os.RemoveAll(d); err != nil {
			return "", err
		}
	}
	c.say("images: unpacking (once for these images)")
	if err := c.unpack(ctx, root, dir, files); err != nil {
		return "", fmt.Errorf("unpack images: %w", err)
	}
	return dir, nil
}

// hashStart hashes the start of an OCI archive: its index, which has the digest of everything else.
func hashStart(w io.Writer, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(w, f, 8192)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// unpack imports images with the containerd of a node that is started for it, in a lab of its own.
func (c *Cluster) unpack(ctx context.Context, root, dir string, files []string) (err error) {
	tmp, err := os.MkdirTemp(image.DefaultDir, ".containerd-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	l, err := lab.New(ctx, lab.Config{Name: c.opt.Name + "-images", Image: root, DieWithCaller: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	cfg := lab.NodeConfig{Name: "images", Disk: tmp, Binds: map[string]string{},
		Files: map[string]string{containerdFile: containerdConfig}}
	var inNode []string
	for i, f := range files {
		abs, err := filepath.Abs(f)
		if err != nil {
			return err
		}
		inNode = append(inNode, fmt.Sprintf("/images/%d.tar", i))
		cfg.Binds[inNode[i]] = abs
	}
	n, err := l.StartNode(ctx, cfg)
	if err != nil {
		return err
	}
	if err := startContainerd(ctx, n); err != nil {
		return err
	}
	for _, f := range inNode {
		// Without the platform, ctr would look for one in the index and find the image "unknown".
		if _, err := n.Exec(ctx, "ctr", "--namespace", "k8s.io", "images", "import", "--snapshotter", "overlayfs",
			f); err != nil {
			return err
		}
	}
	if err := n.Kill(ctx, "containerd", unix.SIGTERM); err != nil {
		return err
	}
	return os.Rename(filepath.Join(tmp, "containerd"), dir)
}

// copyTree copies a directory of containerd. It links files that containerd never writes again
// (blobs, unpacked layers), and copies its databases.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			return copyDir(path, target)
		case strings.HasSuffix(path, ".db"):
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(target, data, 0o644)
		default:
			return os.Link(path, target)
		}
	})
}

func copyDir(from, to string) error {
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: from, Err: err}
	}
	if err := os.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(os.Chown(to, int(st.Uid), int(st.Gid)), unix.Chmod(to, st.Mode&0o7777))
}

// lockFile takes an exclusive flock, which ends with this process.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = wait(ctx, "the lock "+path, func() (bool, error) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}
