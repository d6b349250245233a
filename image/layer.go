package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// keptCopyright is the file that is kept in usr/share/doc: licences must be distributed with the
// image.
const keptCopyright = "copyright"

// emptied returns folders that are empty in the container image: they are only for users at a
// terminal or for the next build, or are mounts in a container.
func emptied() []string {
	return []string{"usr/share/man", "usr/share/info", "usr/share/locale", "var/cache", "var/lib/apt/lists", "var/log",
		"run", "tmp",
		"dev", "proc", "sys", "boot", "etc/openvswitch", "var/lib/ovn", "var/lib/openvswitch"}
}

// leftOut reports whether a path of the node image is not in the container image.
func leftOut(path string, d fs.DirEntry) bool {
	for _, dir := range emptied() {
		if strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	if strings.HasPrefix(path, "usr/share/doc/") {
		return !d.IsDir() && d.Name() != keptCopyright
	}
	// Files that programs generate, each in its own way, and do not need; and the diversions that
	// kept files while they moved to /usr.
	if d.Name() == "__pycache__" || path == "etc/ld.so.cache" || path == "var/lib/dpkg/diversions" {
		return true
	}
	return path == "etc/machine-id" || path == "etc/resolv.conf" || path == "etc/hostname"
}

// layer writes files as one layer of a container image, or as an archive of images. The same files
// give the same bytes: they are sorted, and their times are the epoch.
type layer struct {
	tar   *tar.Writer
	links map[uint64]string // inode → first name, of files with several names
}

func newLayer(w io.Writer) *layer { return &layer{tar.NewWriter(w), map[uint64]string{}} }

func (l *layer) header(h *tar.Header) error {
	h.ModTime, h.Format = time.Unix(0, 0), tar.FormatPAX
	if err := l.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("layer: %s: %w", h.Name, err)
	}
	return nil
}

// tree adds everything under root except the paths of leftOut.
func (l *layer) tree(ctx context.Context, root string) error {
	return filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		name, err := filepath.Rel(root, file)
		if err != nil || name == "." {
			return err
		}
		if leftOut(name, d) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		return l.add(name, file, d)
	})
}

func (l *layer) add(name, file string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return fmt.Errorf("layer: %w", err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	h := &tar.Header{Name: name, Mode: int64(stat.Mode & 0o7777), Uid: int(stat.Uid), Gid: int(stat.Gid)}
	switch info.Mode().Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		return l.header(h)
	case fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = os.Readlink(file); err != nil {
			return fmt.Errorf("layer: %w", err)
		}
		return l.header(h)
	case 0:
	default:
		return fmt.Errorf("layer: %s is no file, folder or symbolic link", name)
	}
	if first, again := l.links[stat.Ino]; again {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return l.header(h)
	}
	if stat.Nlink > 1 {
		l.links[stat.Ino] = name
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if h.PAXRecords, err = capabilities(file); err != nil {
		return err
	}
	return l.regular(h, file)
}

// capabilities returns a program's file capabilities in the form that unpackers of layers expect.
func capabilities(file string) (map[string]string, error) {
	const attribute = "security.capability"
	value := make([]byte, 64)
	n, err := unix.Lgetxattr(file, attribute, value)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("layer: %s of %s: %w", attribute, file, err)
	}
	return map[string]string{"SCHILY.xattr." + attribute: string(value[:n])}, nil
}

func (l *layer) regular(h *tar.Header, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("layer: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := l.header(h); err != nil {
		return err
	}
	if _, err := io.Copy(l.tar, f); err != nil {
		return fmt.Errorf("layer: %s: %w", h.Name, err)
	}
	return nil
}

// program adds a file of this machine under another name.
func (l *layer) program(name, file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("layer: %w", err)
	}
	return l.regular(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: info.Size()}, file)
}

// folder adds an empty folder.
func (l *layer) folder(name string) error {
	return l.header(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755})
}

// text adds a file with that content.
func (l *layer) text(name string, mode int64, text []byte) error {
	if err := l.header(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(text))}); err != nil {
		return err
	}
	if _, err := io.Copy(l.tar, bytes.NewReader(text)); err != nil {
		return fmt.Errorf("layer: %s: %w", name, err)
	}
	return nil
}
