package watch_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/watch"
)

func problems(s *cluster.Snapshot) string {
	var out []string
	for _, p := range s.Problems {
		out = append(out, p.Error())
	}
	return strings.Join(out, "\n")
}

const goodService = `{apiVersion: v1, kind: Service, metadata: {name: good}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}`

// TestManifests: an invalid or incomplete object is reported with its position; a valid one in the
// same file is used.
func TestManifests(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", ""},
		{"comments and empty documents", "# nothing\n---\n---\n# nothing\n", ""},
		{"other kinds",
			"{apiVersion: v1, kind: Namespace, metadata: {name: x}}\n---\n{apiVersion: apps/v1, kind: " +
				"Deployment}\n---\n{apiVersion: serving.knative.dev/v1, kind: Service}", ""},
		{"no YAML", "a: b: c", "File/input: document 1: yaml: mapping values are not allowed in this context"},
		{"no object", "[1, 2]",
			"File/input: document 1: is no Kubernetes object: it is a list"},
		{"no kind", "---\n---\nmetadata: {name: x}", "File/input: document 3: is no Kubernetes object: it has no kind"},
		{"no name", "{apiVersion: v1, kind: Service}", "File/input: document 1: Service: metadata.name: is missing"},
		{"newline in a name", `{apiVersion: v1, kind: Service, metadata: {name: "x\n; reboot"}}`,
			`File/input: document 1: Service: metadata.name: "x\n; reboot": a lowercase RFC 1123 label must consist of`},
		{"quote in a name", `{apiVersion: v1, kind: Pod, metadata: {name: "x'y"}}`,
			`File/input: document 1: Pod: metadata.name: "x'y": a lowercase RFC 1123 subdomain must consist of`},
		{"escape sequence in a namespace", `{apiVersion: v1, kind: Pod, metadata: {name: x, namespace: "\e[2J"}}`,
			`File/input: document 1: Pod x: metadata.namespace: "\x1b[2J": a lowercase RFC 1123 label must consist of`},
		{"other version", "{apiVersion: discovery.k8s.io/v1beta1, kind: EndpointSlice, metadata: {name: x}}",
			`File/input: document 1: EndpointSlice: apiVersion: is "discovery.k8s.io/v1beta1", not "discovery.k8s.io/v1"`},
		{"no version", "{kind: Pod, metadata: {name: x}}", `File/input: document 1: Pod: apiVersion: is "", not "v1"`},
		{"wrong type", "{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {ports: [{port: eighty}]}}",
			"Service/default/x: in input: spec.ports.port: is a string, not an integer (int32)"},
		{"list for a map", "{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {selector: [a]}}",
			"Service/default/x: in input: spec.selector: is a list, not a map"},
		{"unknown fields",
			"{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {clusterIP: 10.96.0.2, clusterip: 1, ports: " +
				"[{port: 80, nodeport: 1}]}}",
			"Service/default/x: in input: unknown field \"spec.clusterip\"\nService/default/x: in input: unknown " +
				"field \"spec.ports[0].nodeport\""},
		{"twice", goodService, "Service/default/good: is in input again; the first is used"},
		{"port too large",
			"{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {clusterIP: 10.96.0.2, ports: " +
				"[{port: 99999999999}]}}",
			"Service/default/x: in input: spec.ports.port: is a number 99999999999, not an integer (int32)"},
		{"lists",
			`{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Pod, metadata: {name: ""}}, {apiVersion: v1, kind: ServiceList, items: [{metadata: {name: x}}]}, 7]}`,
			"File/input: document 1 items[0]: Pod: metadata.name: is missing\nFile/input: document 1 items[2]: " +
				"is no Kubernetes object: it is a number"},
		{"Node with a namespace",
			"{apiVersion: v1, kind: Node, metadata: {name: x, namespace: prod}, spec: {podCIDR: z}}",
			`Node/x: spec.podCIDRs[0]: "z" is not an address range`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := watch.ParseManifests([]byte(goodService+"\n---\n"+c.text), cluster.DefaultConfig())
			got := strings.ReplaceAll(problems(s), "document 2", "document 1") // the first is the valid one
			if !strings.HasPrefix(got, c.want) || (c.want == "") != (got == "") {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			if !slices.ContainsFunc(s.Frontends, func(f *cluster.Frontend) bool { return f.Owner.Name == "good" }) {
				t.Error("the good Service is not served")
			}
		})
	}
}

func TestReadFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) { check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)) }
	write("a.yaml", goodService)
	write("b.yml", strings.ReplaceAll(goodService, "80", "81"))
	write("c.json",
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"json","namespace":"prod"},"spec":{"clusterIP":"10.96.0.3","ports":[{"port":80}]}}`)
	write("d.txt", "a: b: c")
	check(t, os.Mkdir(filepath.Join(dir, "e.yaml"), 0o700))
	check(t, os.Symlink("nowhere", filepath.Join(dir, "f.yaml")))
	s, err := watch.ReadFiles(dir, cluster.DefaultConfig())
	check(t, err)
	want := "service default/good:/tcp/IPv4 10.96.0.1:80\nservice prod/json:/tcp/IPv4 10.96.0.3:80\n" +
		"problem File/e.yaml: read " + dir +
		"/e.yaml: is a directory\nproblem Service/default/good: is in b.yml again; the first is used\n"
	if got := describe(s); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if _, err := watch.ReadFiles(filepath.Join(dir, "none"), cluster.DefaultConfig()); err == nil ||
		!strings.Contains(err.Error(), "read manifests") {
		t.Errorf("of a folder that is not there the error is %v", err)
	}
	if _, err := watch.Files(t.Context(), filepath.Join(dir, "none"), cluster.DefaultConfig()); err == nil {
		t.Error("a folder that is not there is watched")
	}
}

// TestFilesFollow: with a deleted file its objects are removed, and the second of two manifests of
// an object is used. Unchanged values keep their pointers; without a change there is no Snapshot.
func TestFilesFollow(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		tmp := filepath.Join(dir, name+".new")
		check(t, os.WriteFile(tmp, []byte(text), 0o600))
		check(t, os.Rename(tmp, filepath.Join(dir, name)))
	}
	put("a.yaml", goodService)
	put("b.yaml", strings.ReplaceAll(goodService, "80", "81"))
	put("c.yaml", strings.ReplaceAll(strings.ReplaceAll(goodService, "good", "other"), "10.96.0.1", "10.96.0.2"))
	from, err := watch.Files(t.Context(), dir, cluster.DefaultConfig())
	check(t, err)
	snapshots := &newest{from: from}
	other := "service default/other:/tcp/IPv4 10.96.0.2:80\n"
	snapshots.until(t, "service default/good:/tcp/IPv4 10.96.0.1:80\n"+other+
		"problem Service/default/good: is in b.yaml again; the first is used\n")
	first := snapshots.last

	put("c.yaml", "# a comment\n"+strings.ReplaceAll(strings.ReplaceAll(goodService, "good", "other"), "10.96.0.1",
		"10.96.0.2"))
	put("d.txt", "nothing")
	snapshots.silent(t, "nothing of meaning changed")
	check(t, os.Remove(filepath.Join(dir, "a.yaml")))
	snapshots.until(t, "service default/good:/tcp/IPv4 10.96.0.1:81\n"+other)
	if first.Frontends[1] != snapshots.last.Frontends[1] {
		t.Error("the other Service is another pointer")
	}
	put("c.yaml", "a: b: c")
	snapshots.until(t,
		"service default/good:/tcp/IPv4 10.96.0.1:81\nproblem File/c.yaml: document 1: yaml: mapping values are not "+
			"allowed in this context\n")
	gone := "problem File/" + dir + ": read manifests: open " + dir + ": no such file or directory\n"
	check(t, os.RemoveAll(dir)) // files deleted before their folder may be seen as deleted
	eventually(t, 10*time.Second, func() string {
		select {
		case snapshots.last = <-from:
		default:
		}
		if got := describe(snapshots.last); !strings.Contains(got, gone) {
			return got
		}
		return ""
	})
}

// TestFilesFollowAnotherFolder: a folder that is recreated or replaced is watched as before.
// Without a folder, the objects stay, and there is a Problem.
func TestFilesFollowAnotherFolder(t *testing.T) {
	root := t.TempDir()
	dir, next := filepath.Join(root, "manifests"), filepath.Join(root, "next")
	fill := func(dir, port string) {
		check(t, os.Mkdir(dir, 0o700))
		check(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(strings.ReplaceAll(goodService, "80", port)), 0o600))
	}
	service := func(port string) string { return "service default/good:/tcp/IPv4 10.96.0.1:" + port + "\n" }
	fill(dir, "80")
	from, err := watch.Files(t.Context(), dir, cluster.DefaultConfig())
	check(t, err)
	snapshots := &newest{from: from}
	snapshots.until(t, service("80"))
	check(t, os.Rename(dir, filepath.Join(root, "old")))
	snapshots.until(t, service("80")+"problem File/"+dir+": read manifests: open "+dir+": no such file or directory\n")
	fill(dir, "81")
	snapshots.until(t, service("81"))
	fill(next, "82")
	check(t, os.RemoveAll(dir))
	check(t, os.Rename(next, dir))
	snapshots.until(t, service("82"))
	check(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(strings.ReplaceAll(goodService, "80", "83")), 0o600))
	snapshots.until(t, service("83"))
}

func FuzzParseManifests(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.txtar")
	check(f, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		check(f, err)
		for _, doc := range strings.Split(string(text), "---\n") {
			f.Add(doc)
		}
	}
	f.Add(goodService + "\n---\n" + goodService)
	f.Add(`{"kind":"List","items":[{"kind":"ServiceList","items":[{}]}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		s := watch.ParseManifests([]byte(text), cluster.DefaultConfig())
		again := watch.ParseManifests([]byte(text), cluster.DefaultConfig())
		if describe(s) != describe(again) {
			t.Errorf("two readings differ:\n%s\n%s", describe(s), describe(again))
		}
		for _, fr := range s.Frontends {
			if fr.Port == 0 || !fr.ClusterIP.IsValid() || cluster.FamilyOf(fr.ClusterIP) != fr.Family ||
				fmt.Sprint(fr.Protocol)[0] == 'p' {
				t.Errorf("frontend %+v", fr)
			}
			for _, b := range fr.Backends {
				if b.Port == 0 || cluster.FamilyOf(b.Addr) != fr.Family {
					t.Errorf("backend %+v of %s", b, fr.Key())
				}
			}
		}
	})
}
