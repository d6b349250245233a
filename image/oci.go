package image

import (
	"archive/tar"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// entries are what the containers of a node start with.
//
//go:embed entry
var entries embed.FS

// Container is what makes the container image out of the node image.
type Container struct {
	Name    string // repository and tag: "hairpin:dev"
	Hairpin string // the program on this machine
	Portmap string // the CNI plugin for host ports on this machine
}

// Where things are in the container image.
const (
	programPath = "usr/local/bin"
	entryPath   = "usr/local/lib/hairpin"
	portmapPath = entryPath + "/cni/portmap"
)

// WriteOCI writes the container image to a file: a tar archive that is an image layout of OCI (image-spec 1.1) and that
// `docker load` reads too. Its first layer is the node image; it is kept in cacheDir and made in a few seconds. The second
// has the programs and takes no time. Layers are not compressed: registries do that, and nodes read these faster.
func WriteOCI(ctx context.Context, cacheDir, out string, c Container, progress func(line string)) error {
	if err := writeOCI(ctx, cacheDir, out, c, progress); err != nil {
		return fmt.Errorf("write container image %s: %w", out, err)
	}
	return nil
}

func writeOCI(ctx context.Context, cacheDir, out string, c Container, progress func(string)) error {
	root, err := Build(ctx, cacheDir, progress)
	if err != nil {
		return err
	}
	base, err := baseLayer(ctx, cacheDir, root)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(out), ".oci-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	programs, err := writeLayer(filepath.Join(work, "programs"), c.programs)
	if err != nil {
		return err
	}
	tmp := filepath.Join(work, "image.tar")
	config := v1.ImageConfig{
		Cmd:    []string{"hairpin"},
		Labels: map[string]string{v1.AnnotationTitle: "hairpin", v1.AnnotationLicenses: "Apache-2.0"},
	}
	if err := writeLayout(tmp, c.Name, config, []blob{base, programs}); err != nil {
		return err
	}
	return os.Rename(tmp, out)
}

// blob is the content of a file, or of bytes.
type blob struct {
	v1.Descriptor
	file string
	text []byte
}

// baseLayer is the layer of the node image. Its name in the cache says which tree and which rules it was made of.
func baseLayer(ctx context.Context, cacheDir, root string) (blob, error) {
	const rules = "1" // changes with leftOut
	file := filepath.Join(cacheDir, "layer"+rules+"-"+filepath.Base(root)+".tar")
	unlock, err := lock(ctx, filepath.Join(cacheDir, ".image.lock"), func(string) {})
	if err != nil {
		return blob{}, fmt.Errorf("lock image cache: %w", err)
	}
	defer unlock()
	if b, err := layerOf(file); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return b, err
	}
	tmp := file + ".new"
	defer os.Remove(tmp)
	b, err := writeLayer(tmp, func(l *layer) error { return l.tree(ctx, root) })
	if err != nil {
		return b, err
	}
	b.file = file
	return b, os.Rename(tmp, file)
}

func writeLayer(file string, fill func(*layer) error) (blob, error) {
	f, err := os.Create(file)
	if err != nil {
		return blob{}, err
	}
	defer func() { _ = f.Close() }()
	l := newLayer(f)
	if err := errors.Join(fill(l), l.tar.Close(), f.Close()); err != nil {
		return blob{}, err
	}
	return layerOf(file)
}

// layerOf describes a layer that is there.
func layerOf(file string) (blob, error) {
	f, err := os.Open(file)
	if err != nil {
		return blob{}, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return blob{}, err
	}
	sum, err := digest.FromReader(f)
	if err != nil {
		return blob{}, err
	}
	return blob{Descriptor: v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: sum, Size: info.Size()}, file: file}, nil
}

// programs fills the second layer.
func (c Container) programs(l *layer) error {
	for _, dir := range []string{entryPath, path.Dir(portmapPath)} {
		if err := l.folder(dir); err != nil {
			return err
		}
	}
	if err := l.program(programPath+"/hairpin", c.Hairpin); err != nil {
		return err
	}
	if err := l.program(portmapPath, c.Portmap); err != nil {
		return err
	}
	scripts, err := entries.ReadDir("entry") // sorted
	if err != nil {
		return err
	}
	for _, s := range scripts {
		text, err := entries.ReadFile("entry/" + s.Name())
		if err != nil {
			return err
		}
		if err := l.text(path.Join(entryPath, s.Name()), 0o755, text); err != nil {
			return err
		}
	}
	return nil
}

// writeLayout writes the archive: layers, configuration, manifest, index.
func writeLayout(file, name string, start v1.ImageConfig, layers []blob) error {
	epoch := time.Unix(0, 0).UTC()
	start.Env = append(start.Env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	config := v1.Image{
		Created:  &epoch,
		Platform: v1.Platform{Architecture: runtime.GOARCH, OS: "linux"},
		Config:   start,
		RootFS:   v1.RootFS{Type: "layers"},
	}
	manifest := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest}
	archive := dockerArchive{RepoTags: []string{name}}
	for _, b := range layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, b.Digest)
		manifest.Layers = append(manifest.Layers, b.Descriptor)
		archive.Layers = append(archive.Layers, blobPath(b.Digest))
	}
	configBlob, err := jsonBlob(v1.MediaTypeImageConfig, config)
	if err != nil {
		return err
	}
	manifest.Config, archive.Config = configBlob.Descriptor, blobPath(configBlob.Digest)
	manifestBlob, err := jsonBlob(v1.MediaTypeImageManifest, manifest)
	if err != nil {
		return err
	}
	entry := manifestBlob.Descriptor
	entry.Annotations = map[string]string{v1.AnnotationRefName: tag(name), "io.containerd.image.name": reference(name)}
	entry.Platform = &config.Platform
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	w := newLayer(f)
	err = errors.Join(
		w.json(v1.ImageLayoutFile, v1.ImageLayout{Version: v1.ImageLayoutVersion}),
		w.json(v1.ImageIndexFile, v1.Index{Versioned: manifest.Versioned, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{entry}}),
		w.json("manifest.json", []dockerArchive{archive}),
	)
	for _, b := range append(layers, configBlob, manifestBlob) {
		err = errors.Join(err, w.blob(b))
	}
	return errors.Join(err, w.tar.Close(), f.Close())
}

// dockerArchive is an entry of manifest.json, where Docker before 25 looks.
type dockerArchive struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func blobPath(d digest.Digest) string {
	return path.Join(v1.ImageBlobsDir, string(d.Algorithm()), d.Encoded())
}

func jsonBlob(kind string, value any) (blob, error) {
	text, err := json.Marshal(value)
	return blob{Descriptor: v1.Descriptor{MediaType: kind, Digest: digest.FromBytes(text), Size: int64(len(text))}, text: text}, err
}

func (l *layer) json(name string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return l.text(name, 0o644, text)
}

func (l *layer) blob(b blob) error {
	if b.text != nil {
		return l.text(blobPath(b.Digest), 0o644, b.text)
	}
	return l.regular(&tar.Header{Typeflag: tar.TypeReg, Name: blobPath(b.Digest), Mode: 0o644, Size: b.Size}, b.file)
}

func tag(name string) string {
	if _, t, ok := strings.Cut(path.Base(name), ":"); ok {
		return t
	}
	return "latest"
}

// reference is the full name of an image, as containerd keeps it.
func reference(name string) string {
	if path.Base(name) == strings.TrimSuffix(path.Base(name), ":"+tag(name)) {
		name += ":" + tag(name)
	}
	first, _, more := strings.Cut(name, "/")
	switch {
	case !more:
		return "docker.io/library/" + name
	case !strings.ContainsAny(first, ".:") && first != "localhost":
		return "docker.io/" + name
	}
	return name
}
