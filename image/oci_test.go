package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// fakeRoot is a tree that stands where the node image would, with each kind of file that one has.
func fakeRoot(t *testing.T, cacheDir string) {
	t.Helper()
	root := Root(cacheDir)
	for name, text := range map[string]string{
		"usr/bin/perl": "perl", "usr/share/doc/perl/copyright": "licence", "usr/share/doc/perl/README": "long",
		"usr/share/man/man1/perl.1": "long", "var/cache/apt/x": "x", "run/lock/x": "x", "etc/machine-id": "1", "etc/passwd": "root",
	} {
		must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755))
		must(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	must(t, os.Link(filepath.Join(root, "usr/bin/perl"), filepath.Join(root, "usr/bin/perl5")))
	must(t, os.Symlink("usr/bin", filepath.Join(root, "bin")))
	must(t, os.Chmod(filepath.Join(root, "usr/bin/perl"), 0o755|fs.ModeSetuid))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// contents reads a tar archive: names, sorted as they stand, and the text of files.
func contents(t *testing.T, archive []byte) (names []string, text map[string]string) {
	t.Helper()
	text = map[string]string{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return names, text
		}
		must(t, err)
		if !h.ModTime.IsZero() && h.ModTime.Unix() != 0 {
			t.Errorf("%s has the time %s", h.Name, h.ModTime)
		}
		body, err := io.ReadAll(r)
		must(t, err)
		name := h.FileInfo().Mode().String() + " " + h.Name
		if h.Linkname != "" {
			name += " -> " + h.Linkname
		}
		names, text[h.Name] = append(names, name), string(body)
	}
}

// TestWriteOCI follows the archive from its index to the files of its layers, as one does who unpacks it, and checks
// every sum on the way. Written again, it is the same bytes.
func TestWriteOCI(t *testing.T) {
	cache, dir := t.TempDir(), t.TempDir()
	fakeRoot(t, cache)
	program := filepath.Join(dir, "program")
	must(t, os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755))
	c := Container{Name: "registry.example:5000/net/hairpin:v1", Hairpin: program, Portmap: program}
	out := filepath.Join(dir, "image.tar")
	must(t, WriteOCI(t.Context(), cache, out, c, nil))
	first, err := os.ReadFile(out)
	must(t, err)
	must(t, WriteOCI(t.Context(), cache, out, c, nil))
	second, err := os.ReadFile(out)
	must(t, err)
	if !bytes.Equal(first, second) {
		t.Error("the same image is other bytes the second time")
	}

	_, files := contents(t, first)
	blob := func(d v1.Descriptor) string {
		t.Helper()
		text := files["blobs/sha256/"+d.Digest.Encoded()]
		if sum := sha256.Sum256([]byte(text)); hex.EncodeToString(sum[:]) != d.Digest.Encoded() || int64(len(text)) != d.Size {
			t.Errorf("%s: the blob is another, of %d bytes", d.Digest, len(text))
		}
		return text
	}
	var index v1.Index
	must(t, json.Unmarshal([]byte(files["index.json"]), &index))
	want := map[string]string{"io.containerd.image.name": c.Name, v1.AnnotationRefName: "v1"}
	if diff := cmp.Diff(want, index.Manifests[0].Annotations); diff != "" {
		t.Error(diff)
	}
	var manifest v1.Manifest
	must(t, json.Unmarshal([]byte(blob(index.Manifests[0])), &manifest))
	var config v1.Image
	must(t, json.Unmarshal([]byte(blob(manifest.Config)), &config))
	var names []string
	for i, l := range manifest.Layers {
		if config.RootFS.DiffIDs[i] != l.Digest {
			t.Errorf("layer %d: the configuration has %s", i, config.RootFS.DiffIDs[i])
		}
		layer, _ := contents(t, []byte(blob(l)))
		names = append(names, layer...)
	}
	wantNames := []string{
		"Lrwxrwxrwx bin -> usr/bin", "drwxr-xr-x etc/", "-rw-r--r-- etc/passwd", "drwxr-xr-x run/", "drwxr-xr-x usr/", "drwxr-xr-x usr/bin/",
		"urwxr-xr-x usr/bin/perl", "urwxr-xr-x usr/bin/perl5 -> usr/bin/perl", "drwxr-xr-x usr/share/", "drwxr-xr-x usr/share/doc/",
		"drwxr-xr-x usr/share/doc/perl/", "-rw-r--r-- usr/share/doc/perl/copyright", "drwxr-xr-x usr/share/man/", "drwxr-xr-x var/", "drwxr-xr-x var/cache/",
		"drwxr-xr-x usr/local/lib/hairpin/", "drwxr-xr-x usr/local/lib/hairpin/cni/", "-rwxr-xr-x usr/local/bin/hairpin",
		"-rwxr-xr-x usr/local/lib/hairpin/cni/portmap",
	}
	for _, s := range []string{"cleanup", "daemons.sh", "zone"} {
		wantNames = append(wantNames, "-rwxr-xr-x usr/local/lib/hairpin/"+s)
	}
	if diff := cmp.Diff(wantNames, names); diff != "" {
		t.Error(diff)
	}
	// The second image is that of Open vSwitch: the same first layer, and what starts it.
	var ovs v1.Manifest
	must(t, json.Unmarshal([]byte(blob(index.Manifests[1])), &ovs))
	names, _ = contents(t, []byte(blob(ovs.Layers[1])))
	wantNames = []string{"drwxr-xr-x usr/local/lib/hairpin/", "-rwxr-xr-x usr/local/lib/hairpin/daemons.sh", "-rwxr-xr-x usr/local/lib/hairpin/ovs", "-rwxr-xr-x usr/local/lib/hairpin/ovs-handover"}
	if diff := cmp.Diff(wantNames, names); diff != "" || ovs.Layers[0].Digest != manifest.Layers[0].Digest {
		t.Errorf("%s, layers %v", diff, ovs.Layers)
	}
	if name := index.Manifests[1].Annotations["io.containerd.image.name"]; name != "registry.example:5000/net/hairpin-ovs:"+OVSTag() || len(OVSTag()) != 17 {
		t.Errorf("it is called %s", name)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".oci-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestReference(t *testing.T) {
	for name, want := range map[string]string{
		"hairpin":                     "docker.io/library/hairpin:latest",
		"hairpin:dev":                 "docker.io/library/hairpin:dev",
		"net/hairpin:dev":             "docker.io/net/hairpin:dev",
		"localhost/hairpin":           "localhost/hairpin:latest",
		"registry.example:5000/x/y:1": "registry.example:5000/x/y:1",
	} {
		if got := reference(name); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

// TestScripts: every entry script is in an image.
func TestScripts(t *testing.T) {
	all, err := entries.ReadDir("entry")
	must(t, err)
	for _, s := range all {
		if !slices.Contains(slices.Concat(scripts(), ovsScripts()), s.Name()) {
			t.Errorf("%s is in no image", s.Name())
		}
	}
	text, err := os.ReadFile("Dockerfile")
	must(t, err)
	for _, list := range [][]string{scripts(), ovsScripts()} {
		if want := "image/entry/" + strings.Join(list, " image/entry/") + " /"; !strings.Contains(string(text), want) {
			t.Errorf("the Dockerfile does not copy %s", want)
		}
	}
}

// TestDockerfile: it leaves out what the other way of making the image leaves out.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("Dockerfile")
	must(t, err)
	words := strings.Fields(strings.ReplaceAll(string(text), ";", " "))
	for _, dir := range emptied() {
		if slices.Contains([]string{"run", "dev", "proc", "sys"}, dir) { // an engine's own while it builds
			continue
		}
		if !slices.Contains(words, dir) {
			t.Errorf("it keeps %s", dir)
		}
	}
}
