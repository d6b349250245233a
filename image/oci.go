package image

import (
	"archive/tar"
	"context"
	"debug/buildinfo"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// entries has the entry scripts of a node's containers.
//
//go:embed entry
var entries embed.FS

// Container has the input of the container images besides the node image. They are built for the
// architectures of the programs.
type Container struct {
	Name    string   // repository and tag: "hairpin:dev"
	OVS     string   // Open vSwitch and OVN; see Node
	Hairpin []string // files of the program, one for each architecture
	Portmap []string // files of the CNI plugin for host ports
	Locked  bool     // versions of Open vSwitch and OVN that are not in the lock are an error
}

// ovsName returns the name of Open vSwitch's image for the name of the others.
func ovsName(name, ovsTag string) string {
	return withoutTag(name) + "-ovs:" + ovsTag
}

// Entry scripts of each image.
func ovsScripts() []string {
	return []string{"connect-database", "daemons.sh", "disk-space", "ovs", "ovs-handover"}
}
func scripts() []string { return []string{"cleanup", "daemons.sh", "disk-space", "zone"} }

// nameAnnotation has an image's full name in the index of an archive, for containerd.
const nameAnnotation = "io.containerd.image.name"

// Paths in the container image.
const (
	programPath = "usr/local/bin"
	entryPath   = "usr/local/lib/hairpin"
	portmapPath = entryPath + "/cni/portmap"
)

// WriteOCI writes the container images to a file: a tar archive in the OCI image layout (image-spec
// 1.1), which `docker load` reads too. The first layer is the node image; it is made in a few
// seconds and kept in cacheDir. The second has the programs and takes no time. Layers are not
// compressed: registries do that, and nodes read these faster. The same packages, scripts and
// programs give the same bytes. Images for several architectures are indexes; for Docker before 25,
// each has the architecture after its tag. Beside the file, WriteOCI writes the contents of each
// image (REPOSITORY.cdx.json, CycloneDX). It returns the images' names.
func WriteOCI(ctx context.Context, cacheDir, out string, c Container,
	progress func(line string)) (names []string, err error) {
	if names, err = writeOCI(ctx, cacheDir, out, c, progress); err != nil {
		return nil, fmt.Errorf("write container image %s: %w", out, err)
	}
	return names, nil
}

func writeOCI(ctx context.Context, cacheDir, out string, c Container, progress func(string)) ([]string, error) {
	list, err := Node(c.OVS)
	if err != nil {
		return nil, err
	}
	hairpin, err := byArchitecture(c.Hairpin)
	if err != nil {
		return nil, err
	}
	portmap, err := byArchitecture(c.Portmap)
	if err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(filepath.Dir(out), ".oci-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	entryLayer, err := writeLayer(filepath.Join(work, "ovs"), func(l *layer) error {
		return errors.Join(l.folder(entryPath), l.entries(ovsScripts()))
	})
	if err != nil {
		return nil, err
	}
	main, ovs := packed{start: imageConfig("hairpin", tag(c.Name), "hairpin"), name: c.Name}, packed{}
	var roots []string
	for _, arch := range slices.Sorted(maps.Keys(hairpin)) {
		if portmap[arch] == "" {
			return nil, fmt.Errorf("there is no portmap for %s", arch)
		}
		root, err := list.on(arch).Build(ctx, cacheDir, progress)
		if err != nil {
			return nil, err
		}
		if c.Locked {
			if err := list.on(arch).checkLocked(root); err != nil {
				return nil, err
			}
		}
		base, err := baseLayer(ctx, cacheDir, root)
		if err != nil {
			return nil, err
		}
		programs, err := writeLayer(filepath.Join(work, arch),
			func(l *layer) error { return fillPrograms(l, hairpin[arch], portmap[arch]) })
		if err != nil {
			return nil, err
		}
		roots = append(roots, root)
		main.variants = append(main.variants, variant{arch, []blob{base, programs}})
		ovs.variants = append(ovs.variants, variant{arch, []blob{base, entryLayer}})
	}
	ovsTag, err := list.OVSTag(roots...)
	if err != nil {
		return nil, err
	}
	ovs.name = ovsName(c.Name, ovsTag)
	ovs.start = imageConfig("hairpin-ovs", ovsTag, "/"+entryPath+"/ovs")
	tmp := filepath.Join(work, "image.tar")
	digests, err := writeLayout(tmp, main, ovs)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(writeBOM(filepath.Dir(out), main.name, digests[0], roots,
		append(slices.Clone(c.Hairpin), c.Portmap...)),
		writeBOM(filepath.Dir(out), ovs.name, digests[1], roots, nil)); err != nil {
		return nil, err
	}
	return []string{main.name, ovs.name}, os.Rename(tmp, out)
}

func imageConfig(title, version, command string) v1.ImageConfig {
	return v1.ImageConfig{Cmd: []string{command}, Labels: map[string]string{
		v1.AnnotationTitle: title, v1.AnnotationVersion: version, v1.AnnotationLicenses: "Apache-2.0"}}
}

// byArchitecture returns Go programs by the architecture that they are built for.
func byArchitecture(programs []string) (map[string]string, error) {
	files := map[string]string{}
	for _, file := range programs {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "GOARCH" })
		if i < 0 {
			return nil, fmt.Errorf("%s does not say which architecture it is for", file)
		}
		arch := info.Settings[i].Value
		if files[arch] != "" {
			return nil, fmt.Errorf("%s and %s are both for %s", files[arch], file, arch)
		}
		files[arch] = file
	}
	return files, nil
}

// blob is the content of a file, or of bytes.
type blob struct {
	v1.Descriptor
	file string
	text []byte
}

// layerRules must change whenever leftOut changes.
const layerRules = "2"

// baseLayer returns the layer of the node image. Its name in the cache identifies the tree and the
// rules that it was made from.
func baseLayer(ctx context.Context, cacheDir, root string) (blob, error) {
	file := filepath.Join(cacheDir, "layer"+layerRules+"-"+filepath.Base(root)+".tar")
	unlock, err := flock(ctx, filepath.Join(cacheDir, ".image.lock"), func(string) {})
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

// layerOf describes an existing layer.
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
	return blob{Descriptor: v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: sum, Size: info.Size()},
		file: file}, nil
}

// fillPrograms fills the second layer.
func fillPrograms(l *layer, hairpin, portmap string) error {
	return errors.Join(l.folder(entryPath), l.folder(path.Dir(portmapPath)),
		l.program(programPath+"/hairpin", hairpin), l.program(portmapPath, portmap), l.entries(scripts()))
}

// entries adds entry scripts.
func (l *layer) entries(names []string) error {
	for _, name := range names {
		text, err := entries.ReadFile("entry/" + name)
		if err != nil {
			return err
		}
		if err := l.text(path.Join(entryPath, name), 0o755, text); err != nil {
			return err
		}
	}
	return nil
}

// packed is an image in an archive.
type packed struct {
	name     string
	start    v1.ImageConfig
	variants []variant
}

// variant is an image for one architecture.
type variant struct {
	arch   string
	layers []blob
}

// writeLayout writes an archive of images: index, then layers, configurations, manifests. It
// returns the images' digests.
func writeLayout(file string, images ...packed) ([]digest.Digest, error) {
	index := newIndex()
	var docker []dockerArchive
	var blobs []blob
	for _, i := range images {
		entry, archives, all, err := i.describe()
		if err != nil {
			return nil, err
		}
		index.Manifests, docker = append(index.Manifests, entry), append(docker, archives...)
		for _, b := range all { // images share layers
			if !slices.ContainsFunc(blobs, func(have blob) bool { return have.Digest == b.Digest }) {
				blobs = append(blobs, b)
			}
		}
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	w := newLayer(f)
	err = errors.Join(
		w.json(v1.ImageLayoutFile, v1.ImageLayout{Version: v1.ImageLayoutVersion}), w.json(v1.ImageIndexFile, index),
		w.json("manifest.json", docker))
	for _, b := range blobs {
		err = errors.Join(err, w.blob(b))
	}
	var digests []digest.Digest
	for _, m := range index.Manifests {
		digests = append(digests, m.Digest)
	}
	return digests, errors.Join(err, w.tar.Close(), f.Close())
}

func newIndex() v1.Index {
	return v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
}

// describe returns an image's entry of the archive's index, the entries for Docker, and the image's
// blobs. With several variants, the image has its own index.
func (p packed) describe() (entry v1.Descriptor, archives []dockerArchive, blobs []blob, err error) {
	own := newIndex()
	for _, v := range p.variants {
		manifest, archive, all, err := p.describeVariant(v)
		if err != nil {
			return entry, nil, nil, err
		}
		if len(p.variants) > 1 {
			archive.RepoTags[0] += "-" + v.arch
		}
		own.Manifests = append(own.Manifests, manifest)
		archives, blobs = append(archives, archive), append(blobs, all...)
	}
	entry = own.Manifests[0]
	if len(p.variants) > 1 {
		b, err := jsonBlob(v1.MediaTypeImageIndex, own)
		if err != nil {
			return entry, nil, nil, err
		}
		entry, blobs = b.Descriptor, append(blobs, b)
	}
	entry.Annotations = map[string]string{v1.AnnotationRefName: tag(p.name),
		nameAnnotation: reference(p.name)}
	return entry, archives, blobs, nil
}

func (p packed) describeVariant(v variant) (entry v1.Descriptor, archive dockerArchive, blobs []blob, err error) {
	epoch := time.Unix(0, 0).UTC()
	p.start.Env = append(slices.Clone(p.start.Env), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	config := v1.Image{
		Created:  &epoch,
		Platform: v1.Platform{Architecture: v.arch, OS: "linux"},
		Config:   p.start,
		RootFS:   v1.RootFS{Type: "layers"},
	}
	manifest := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest}
	archive = dockerArchive{RepoTags: []string{p.name}}
	for _, b := range v.layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, b.Digest)
		manifest.Layers = append(manifest.Layers, b.Descriptor)
		archive.Layers = append(archive.Layers, blobPath(b.Digest))
	}
	configBlob, err := jsonBlob(v1.MediaTypeImageConfig, config)
	if err != nil {
		return entry, archive, nil, err
	}
	manifest.Config, archive.Config = configBlob.Descriptor, blobPath(configBlob.Digest)
	manifestBlob, err := jsonBlob(v1.MediaTypeImageManifest, manifest)
	entry = manifestBlob.Descriptor
	entry.Platform = &config.Platform
	return entry, archive, append(slices.Clone(v.layers), configBlob, manifestBlob), err
}

// OVSTagIn returns the tag of Open vSwitch's image in an archive that WriteOCI wrote.
func OVSTagIn(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			return "", fmt.Errorf("index of %s: %w", file, err)
		}
		if h.Name != v1.ImageIndexFile {
			continue
		}
		var index v1.Index
		if err := json.NewDecoder(r).Decode(&index); err != nil {
			return "", fmt.Errorf("index of %s: %w", file, err)
		}
		for _, m := range index.Manifests {
			name, ovsTag, _ := strings.Cut(path.Base(m.Annotations[nameAnnotation]), ":")
			if strings.HasSuffix(name, "-ovs") {
				return ovsTag, nil
			}
		}
		return "", fmt.Errorf("%s has no image of Open vSwitch", file)
	}
}

// dockerArchive is an entry of manifest.json, which Docker before 25 reads.
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
	return blob{Descriptor: v1.Descriptor{MediaType: kind, Digest: digest.FromBytes(text), Size: int64(len(text))},
		text: text}, err
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
