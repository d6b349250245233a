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
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// fakeRoot makes a tree in place of the node image, with each kind of file in it.
func fakeRoot(t *testing.T, root, arch string) {
	t.Helper()
	for name, text := range map[string]string{
		"usr/bin/perl": "perl", "usr/share/doc/perl/copyright": "licence", "usr/share/doc/perl/README": "long",
		"usr/share/man/man1/perl.1": "long", "var/cache/apt/x": "x", "run/lock/x": "x", "etc/machine-id": "1",
		"etc/passwd": "root",
		"var/lib/dpkg/status": "Package: perl\nStatus: install ok installed\nVersion: 5.40.1-6\nArchitecture: " + arch +
			"\n\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 1\n",
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

// contents reads a tar archive: names in the order of the archive, and the text of files.
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

// TestWriteOCI follows the archive from its index to the files of its layers, like a program that
// unpacks it, and checks every digest. A second run gives the same bytes.
func TestWriteOCI(t *testing.T) {
	cache, dir := t.TempDir(), t.TempDir()
	fakeRoot(t, node().root(cache), "amd64")
	program, err := os.Executable() // a program with information about its modules
	must(t, err)
	c := Container{Name: "registry.example:5000/net/hairpin:v1", Hairpin: []string{program}, Portmap: []string{program}}
	out := filepath.Join(dir, "image.tar")
	tag, err := node().OVSTag(node().root(cache))
	must(t, err)
	var written [2][]byte // the archive and the lists of contents
	for i := range written {
		names, err := WriteOCI(t.Context(), cache, out, c, nil)
		must(t, err)
		if want := []string{c.Name, "registry.example:5000/net/hairpin-ovs:" + tag}; !slices.Equal(names, want) ||
			len(tag) != 17 {
			t.Errorf("they are called %q, not %q", names, want)
		}
		for _, name := range []string{"image.tar", "hairpin.cdx.json", "hairpin-ovs.cdx.json"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			must(t, err)
			written[i] = append(written[i], text...)
		}
	}
	if !bytes.Equal(written[0], written[1]) {
		t.Error("the same image is other bytes the second time")
	}
	first, err := os.ReadFile(out)
	must(t, err)

	_, files := contents(t, first)
	blob := func(d v1.Descriptor) string {
		t.Helper()
		text := files["blobs/sha256/"+d.Digest.Encoded()]
		if sum := sha256.Sum256([]byte(text)); hex.EncodeToString(sum[:]) != d.Digest.Encoded() ||
			int64(len(text)) != d.Size {
			t.Errorf("%s: the blob is another, of %d bytes", d.Digest, len(text))
		}
		return text
	}
	var index v1.Index
	must(t, json.Unmarshal([]byte(files["index.json"]), &index))
	want := map[string]string{nameAnnotation: c.Name, v1.AnnotationRefName: "v1"}
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
		"Lrwxrwxrwx bin -> usr/bin", "drwxr-xr-x etc/", "-rw-r--r-- etc/passwd", "drwxr-xr-x run/", "drwxr-xr-x usr/",
		"drwxr-xr-x usr/bin/",
		"urwxr-xr-x usr/bin/perl", "urwxr-xr-x usr/bin/perl5 -> usr/bin/perl", "drwxr-xr-x usr/share/",
		"drwxr-xr-x usr/share/doc/",
		"drwxr-xr-x usr/share/doc/perl/", "-rw-r--r-- usr/share/doc/perl/copyright", "drwxr-xr-x usr/share/man/",
		"drwxr-xr-x var/", "drwxr-xr-x var/cache/",
		"drwxr-xr-x var/lib/", "drwxr-xr-x var/lib/dpkg/", "-rw-r--r-- var/lib/dpkg/status",
		"drwxr-xr-x usr/local/lib/hairpin/", "drwxr-xr-x usr/local/lib/hairpin/cni/",
		"-rwxr-xr-x usr/local/bin/hairpin",
		"-rwxr-xr-x usr/local/lib/hairpin/cni/portmap",
	}
	for _, s := range []string{"cleanup", "daemons.sh", "disk-space", "zone"} {
		wantNames = append(wantNames, "-rwxr-xr-x usr/local/lib/hairpin/"+s)
	}
	if diff := cmp.Diff(wantNames, names); diff != "" {
		t.Error(diff)
	}
	// The second image is that of Open vSwitch: the same first layer, and its entry scripts.
	var ovs v1.Manifest
	must(t, json.Unmarshal([]byte(blob(index.Manifests[1])), &ovs))
	names, _ = contents(t, []byte(blob(ovs.Layers[1])))
	wantNames = []string{"drwxr-xr-x usr/local/lib/hairpin/",
		"-rwxr-xr-x usr/local/lib/hairpin/connect-database", "-rwxr-xr-x usr/local/lib/hairpin/daemons.sh",
		"-rwxr-xr-x usr/local/lib/hairpin/disk-space", "-rwxr-xr-x usr/local/lib/hairpin/ovs",
		"-rwxr-xr-x usr/local/lib/hairpin/ovs-handover"}
	if diff := cmp.Diff(wantNames, names); diff != "" || ovs.Layers[0].Digest != manifest.Layers[0].Digest {
		t.Errorf("%s, layers %v", diff, ovs.Layers)
	}
	if name := index.Manifests[1].Annotations["io.containerd.image.name"]; name != "registry.example:5000/net/hairpin-ovs:"+tag {
		t.Errorf("it is called %s", name)
	}
	for i, want := range []string{"pkg:golang/stdlib@",
		"pkg:deb/debian/perl@5.40.1-6?arch=amd64&distro=trixie&upstream=perl%405.40.1-6"} {
		name := []string{"hairpin.cdx.json", "hairpin-ovs.cdx.json"}[i]
		text, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		bom := cdx.NewBOM()
		must(t, cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(bom))
		if !slices.ContainsFunc(*bom.Components,
			func(c cdx.Component) bool { return strings.HasPrefix(c.PackageURL, want) }) {
			t.Errorf("%s does not have %s", name, want)
		}
		if got := (*bom.Metadata.Component.Hashes)[0].Value; got != index.Manifests[i].Digest.Encoded() {
			t.Errorf("%s is of image %s", name, got)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".oci-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestOVSTagIn checks that an archive gives the tag of Open vSwitch's image, whichever its Open
// vSwitch is.
func TestOVSTagIn(t *testing.T) {
	cache, out := t.TempDir(), filepath.Join(t.TempDir(), "image.tar")
	program, err := os.Executable()
	must(t, err)
	for _, ovs := range []string{"", Debian13} {
		list, err := Node(ovs)
		must(t, err)
		fakeRoot(t, list.root(cache), "amd64")
		want, err := list.OVSTag(list.root(cache))
		must(t, err)
		_, err = WriteOCI(t.Context(), cache, out, Container{Name: "registry.example:5000/net/hairpin:v1", OVS: ovs,
			Hairpin: []string{program}, Portmap: []string{program}}, nil)
		must(t, err)
		if got, err := OVSTagIn(out); err != nil || got != want {
			t.Errorf("OVS=%s: %q, %v; want %s", ovs, got, err, want)
		}
	}
	must(t, os.WriteFile(out, nil, 0o644))
	if got, err := OVSTagIn(out); err == nil {
		t.Errorf("an empty archive has the tag %q", got)
	}
}

// TestWriteOCIArchitectures checks that with programs for two architectures, each image is an index
// of two, in any order of the programs.
func TestWriteOCIArchitectures(t *testing.T) {
	cache, dir := t.TempDir(), t.TempDir()
	var programs []string
	for _, arch := range architectures() {
		fakeRoot(t, node().on(arch).root(cache), arch)
		must(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\nfunc main() {}\n"), 0o644))
		program := filepath.Join(dir, arch)
		build := exec.CommandContext(t.Context(), "go", "build", "-o", program, filepath.Join(dir, "main.go"))
		build.Env = append(os.Environ(), "GOARCH="+arch, "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		programs = append(programs, program)
	}
	file := filepath.Join(dir, "image.tar")
	write := func(hairpin, portmap []string) []byte {
		t.Helper()
		_, err := WriteOCI(t.Context(), cache, file, Container{Name: "hairpin:v1", Hairpin: hairpin, Portmap: portmap},
			nil)
		must(t, err)
		text, err := os.ReadFile(file)
		must(t, err)
		return text
	}
	archive := write(programs, programs)
	backwards := []string{programs[1], programs[0]}
	if !bytes.Equal(archive, write(backwards, backwards)) {
		t.Error("in another order it is another archive")
	}
	if _, err := WriteOCI(t.Context(), cache, file,
		Container{Name: "hairpin:v1", Hairpin: programs, Portmap: programs[:1]}, nil); err == nil {
		t.Error("an image without its portmap was written")
	}

	_, files := contents(t, archive)
	read := func(d v1.Descriptor, value any) {
		t.Helper()
		must(t, json.Unmarshal([]byte(files["blobs/sha256/"+d.Digest.Encoded()]), value))
	}
	var top v1.Index
	must(t, json.Unmarshal([]byte(files["index.json"]), &top))
	var docker []dockerArchive
	must(t, json.Unmarshal([]byte(files["manifest.json"]), &docker))
	for i, entry := range top.Manifests {
		var image v1.Index
		read(entry, &image)
		if entry.MediaType != v1.MediaTypeImageIndex || len(image.Manifests) != 2 {
			t.Fatalf("image %d is %s of %d", i, entry.MediaType, len(image.Manifests))
		}
		for j, arch := range architectures() {
			var manifest v1.Manifest
			read(image.Manifests[j], &manifest)
			var config v1.Image
			read(manifest.Config, &config)
			if image.Manifests[j].Platform.Architecture != arch || config.Architecture != arch {
				t.Errorf("image %d is for %v and %s, not %s", i, image.Manifests[j].Platform, config.Architecture, arch)
			}
			want := tag(reference(entry.Annotations[nameAnnotation]))
			if config.Config.Labels[v1.AnnotationVersion] != want {
				t.Errorf("image %d has the version %q, not %s", i, config.Config.Labels[v1.AnnotationVersion], want)
			}
			if !strings.HasSuffix(docker[2*i+j].RepoTags[0], "-"+arch) {
				t.Errorf("Docker has the name %s", docker[2*i+j].RepoTags[0])
			}
			_, base := contents(t, []byte(files["blobs/sha256/"+manifest.Layers[0].Digest.Encoded()]))
			if !strings.Contains(base["var/lib/dpkg/status"], "Architecture: "+arch) {
				t.Errorf("image %d for %s has the packages %s", i, arch, base["var/lib/dpkg/status"])
			}
			_, own := contents(t, []byte(files["blobs/sha256/"+manifest.Layers[1].Digest.Encoded()]))
			if want, err := os.ReadFile(programs[j]); err != nil || i == 0 &&
				own["usr/local/bin/hairpin"] != string(want) {
				t.Errorf("image %d for %s has another program: %v", i, arch, err)
			}
		}
	}
	bom, err := os.ReadFile(filepath.Join(dir, "hairpin.cdx.json"))
	must(t, err)
	for _, arch := range architectures() {
		if !bytes.Contains(bom, []byte("perl@5.40.1-6?arch="+arch)) {
			t.Errorf("the list of contents lacks packages for %s", arch)
		}
	}
}

// TestLock checks that the locks have the packages of every architecture's tree.
func TestLock(t *testing.T) {
	locks := map[string]string{"amd64": "grep 3.11-4\nlibc6 2.41\n", "arm64": "grep 3.11-4+b1\nlibc6 2.41\nlibonly 1\n"}
	want := "grep 3.11-4 amd64\ngrep 3.11-4+b1 arm64\nlibc6 2.41\nlibonly 1 arm64\n"
	if got := joinLocks(locks); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for version, lock := range map[string]string{"4.": lockedPackages, "3.5.0-": debian13Packages} {
		for _, arch := range architectures() {
			if text := linesFor(lock, arch); !strings.Contains(text, "openvswitch-switch "+version) ||
				strings.Contains(text, arch) {
				t.Errorf("of %s, with Open vSwitch %s: %s", arch, version, text)
			}
		}
		if joinLocks(map[string]string{"amd64": linesFor(lock, "amd64"), "arm64": linesFor(lock, "arm64")}) != lock {
			t.Errorf("the lock with Open vSwitch %s is not as it is written", version)
		}
	}
}

// TestLocked checks that a release has no other versions of Open vSwitch and OVN than its lock.
// Other packages may have security updates.
func TestLocked(t *testing.T) {
	for _, ovs := range []string{"", Debian13} {
		list, err := Node(ovs)
		must(t, err)
		status := ""
		for line := range strings.Lines(list.locked()) {
			name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
			status += "Package: " + name + "\nStatus: install ok installed\nVersion: " + version + "\n\n"
		}
		for _, c := range []struct{ name, packages, want string }{
			{"the lock", status, ""},
			{"a security update", strings.Replace(status, "Package: perl-base\nStatus: install ok installed\nVersion: ",
				"Package: perl-base\nStatus: install ok installed\nVersion: 9", 1), ""},
			{"another Open vSwitch", strings.Replace(status,
				"Package: openvswitch-switch\nStatus: install ok installed\nVersion: ",
				"Package: openvswitch-switch\nStatus: install ok installed\nVersion: 9", 1), "openvswitch-switch "},
			{"no OVN", strings.Replace(status, "Package: ovn-host\nStatus: install ok installed",
				"Package: ovn-host\nStatus: deinstall ok config-files", 1), "ovn-host "},
		} {
			root := t.TempDir()
			must(t, os.MkdirAll(filepath.Join(root, "var/lib/dpkg"), 0o755))
			must(t, os.WriteFile(filepath.Join(root, "var/lib/dpkg/status"), []byte(c.packages), 0o644))
			err := list.checkLocked(root)
			if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), list.lockFile())) || c.packages == status && c.want != "" {
				t.Errorf("OVS=%s, %s: %v", ovs, c.name, err)
			}
		}
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

// TestScripts checks that every entry script is in an image.
func TestScripts(t *testing.T) {
	all, err := entries.ReadDir("entry")
	must(t, err)
	for _, s := range all {
		if !slices.Contains(slices.Concat(scripts(), ovsScripts()), s.Name()) {
			t.Errorf("%s is in no image", s.Name())
		}
	}
}

// TestOVSTag checks that another version of a package gives another tag, and that a removed package
// does not count.
func TestOVSTag(t *testing.T) {
	tag := func(status string) string {
		root := t.TempDir()
		must(t, os.MkdirAll(filepath.Join(root, "var/lib/dpkg"), 0o755))
		must(t, os.WriteFile(filepath.Join(root, "var/lib/dpkg/status"), []byte(status), 0o644))
		tag, err := node().OVSTag(root)
		must(t, err)
		return tag
	}
	const before = "Package: libssl3t64\nStatus: install ok installed\nVersion: 3.5.7-1\nSource: openssl (3.5.7-1)\n\n"
	if tag(before) == tag(strings.ReplaceAll(before, "3.5.7-1", "3.5.7-2")) {
		t.Error("a security update changes nothing")
	}
	if tag(before) != tag(before+"Package: x\nStatus: deinstall ok config-files\nVersion: 1\n") {
		t.Error("what is removed counts")
	}
	older, err := Node(Debian13)
	must(t, err)
	if now, err := node().OVSTag(); err != nil {
		t.Error(err)
	} else if got, err := older.OVSTag(); err != nil || got == now {
		t.Errorf("with Debian 13's Open vSwitch the tag is %q, too: %v", got, err)
	}
}
