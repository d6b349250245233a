package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Made is a container image to write: programs of this machine, with or without a tree of Debian
// packages.
type Made struct {
	Name     string            // repository and tag
	Root     string            // of List.Build; empty means none
	Programs map[string]string // path in the image → file on this machine
	Links    map[string]string // path in the image → target of the symbolic link
	Start    v1.ImageConfig
}

// WriteProgram writes a container image of one static program to an archive, in the format of
// WriteOCI. The program is /bin/NAME, with the name of the file. args are the container's command.
func WriteProgram(out, name, program string, args ...string) error {
	return WriteMade(context.Background(), "", out, Made{
		Name: name, Programs: map[string]string{"bin/" + filepath.Base(program): program},
		Start: v1.ImageConfig{Entrypoint: args},
	})
}

// WriteMade writes container images to an archive, in the format of WriteOCI. It keeps layers of
// packages in cacheDir.
func WriteMade(ctx context.Context, cacheDir, out string, images ...Made) error {
	if err := writeMade(ctx, cacheDir, out, images); err != nil {
		return fmt.Errorf("write container images %s: %w", out, err)
	}
	return nil
}

func writeMade(ctx context.Context, cacheDir, out string, images []Made) error {
	work, err := os.MkdirTemp(filepath.Dir(out), ".oci-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	var all []packed
	for i, m := range images {
		var layers []blob
		if m.Root != "" {
			base, err := baseLayer(ctx, cacheDir, m.Root)
			if err != nil {
				return err
			}
			layers = append(layers, base)
		}
		own, err := writeLayer(filepath.Join(work, fmt.Sprint(i)), m.fill)
		if err != nil {
			return err
		}
		all = append(all, packed{m.Name, m.Start, []variant{{runtime.GOARCH, append(layers, own)}}})
	}
	tmp := filepath.Join(work, "image.tar")
	if _, err := writeLayout(tmp, all...); err != nil {
		return err
	}
	return os.Rename(tmp, out)
}

// fill writes the layer of an image's programs. Without packages, it adds the folders that a
// program may expect.
func (m Made) fill(l *layer) error {
	var err error
	if m.Root == "" {
		for _, dir := range []string{"bin", "etc", "tmp"} {
			err = errors.Join(err, l.folder(dir))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Programs)) {
		err = errors.Join(err, l.program(path.Clean(name), m.Programs[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(m.Links)) {
		err = errors.Join(err, l.header(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: m.Links[name],
			Mode: 0o777}))
	}
	return err
}
