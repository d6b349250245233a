package watch_test

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/rogpeppe/go-internal/txtar"

	"hairpin/cluster"
	"hairpin/watch"
)

// A scenario is a sequence of changes of objects, in testdata/*.txtar. Its sections are, step by
// step:
//
//	-- set --      manifests to create or change
//	-- refused --  such as the API server does not admit (a folder takes them)
//	-- delete --   objects to delete, "Kind/namespace/name" a line
//	-- want --     the Snapshot as text; a step ends here
//	-- want of files -- the same, where the folder also has what the API refused
//
// Both sources are to give this text, and the same Snapshot as one that sees the objects for the
// first time.
type step struct {
	set, refused, delete string
	want, wantFiles      string
}

func scenarios(t *testing.T) map[string][]step {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txtar")
	check(t, err)
	all := map[string][]step{}
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		check(t, err)
		var steps []step
		var s step
		for _, f := range archive.Files {
			text := string(f.Data)
			switch f.Name {
			case "set":
				s.set = text
			case "refused":
				s.refused = text
			case "delete":
				s.delete = text
			case "want":
				s.want, s.wantFiles = text, text
				steps = append(steps, s)
				s = step{}
			case "want of files":
				steps[len(steps)-1].wantFiles = text
			default:
				t.Fatalf("%s: a section cannot be called %q", path, f.Name)
			}
		}
		all[strings.TrimSuffix(filepath.Base(path), ".txtar")] = steps
	}
	if len(all) == 0 {
		t.Fatal("there is no scenario")
	}
	return all
}

// source is the input on which a scenario runs.
type source interface {
	// change applies a step.
	change(t *testing.T, s step)
	// want returns the expected state. all are the current manifests by owner, refused those of
	// them that the API rejects.
	want(s step, all, refused map[string]string) (text string, manifests map[string]string)
}

// play runs a scenario and deletes all its objects at the end.
func play(t *testing.T, steps []step, src source, snapshots *newest) {
	all, refused := map[string]string{}, map[string]string{}
	defer func() {
		if t.Failed() { // the next one must start without objects
			src.change(t, step{delete: strings.Join(slices.Collect(maps.Keys(all)), "\n")})
		}
	}()
	for i, s := range append(steps, step{}) {
		if i == len(steps) {
			s.delete = strings.Join(slices.Collect(maps.Keys(all)), "\n")
		}
		for _, doc := range documents(s.set) {
			all[doc.key] = doc.text
		}
		for _, doc := range documents(s.refused) {
			all[doc.key], refused[doc.key] = doc.text, doc.text
		}
		src.change(t, s)
		for _, key := range strings.Fields(s.delete) {
			delete(all, key)
			delete(refused, key)
		}
		text, manifests := src.want(s, all, refused)
		snapshots.waitFor(t, fmt.Sprintf("step %d", i+1), text, manifests)
	}
}

// newest keeps the last Snapshot, because a step without a change yields none.
type newest struct {
	from <-chan *cluster.Snapshot
	last *cluster.Snapshot
}

// waitFor waits for a Snapshot of this text, which must then equal that of a first read of the
// manifests.
func (n *newest) waitFor(t *testing.T, what, text string, manifests map[string]string) {
	t.Helper()
	fresh := watch.ParseManifests([]byte(strings.Join(slices.Sorted(maps.Values(manifests)), "\n---\n")),
		cluster.DefaultConfig())
	if got := describe(fresh); got != text {
		t.Fatalf("%s: wanted is (-), the manifests mean (+):\n%s", what, cmp.Diff(text, got))
	}
	diff := "no Snapshot"
	for limit := time.After(20 * time.Second); ; {
		if n.last != nil {
			got := plain(n.last)
			if diff = cmp.Diff(text, describe(got)); diff == "" {
				diff = cmp.Diff(plain(fresh), got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}))
			}
			if diff == "" {
				return
			}
		}
		select {
		case n.last = <-n.from:
		case <-limit:
			t.Fatalf("%s: wanted (-), last (+):\n%s", what, diff)
		}
	}
}

// plain returns a Snapshot without values that only the API server has: its own Service, its
// Namespaces, the UIDs and times of objects, and Received. It omits Starting as well: the server
// stores a Pod with rejected addresses without any.
func plain(s *cluster.Snapshot) *cluster.Snapshot {
	out := *s
	out.Frontends = slices.DeleteFunc(slices.Clone(s.Frontends),
		func(f *cluster.Frontend) bool { return f.Owner.Name == "kubernetes" })
	if len(out.Frontends) == 0 {
		out.Frontends = nil
	}
	for i, f := range out.Frontends {
		g := *f
		g.UID, g.Created = "", time.Time{}
		out.Frontends[i] = &g
	}
	out.Nodes, out.Pods, out.Starting, out.Namespaces, out.Received = nil, nil, nil, nil, time.Time{}
	for _, n := range s.Nodes {
		m := *n
		m.UID, m.Created = "", time.Time{}
		out.Nodes = append(out.Nodes, &m)
	}
	for _, p := range s.Pods {
		q := *p
		q.UID = ""
		out.Pods = append(out.Pods, &q)
	}
	return &out
}

type document struct{ key, text string }

// documents splits manifests; the key is "Kind/namespace/name".
func documents(text string) []document {
	var out []document
	for _, doc := range strings.Split(text, "---\n") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		o := decode(doc)
		key := o.GetObjectKind().GroupVersionKind().Kind + "/"
		if o.GetNamespace() != "" {
			key += o.GetNamespace() + "/"
		}
		out = append(out, document{key + o.GetName(), doc})
	}
	return out
}

// files is a folder as a source.
type files struct{ dir string }

func (f files) change(t *testing.T, s step) {
	t.Helper()
	path := func(key string) string { return filepath.Join(f.dir, strings.ReplaceAll(key, "/", "_")+".yaml") }
	for _, doc := range append(documents(s.set), documents(s.refused)...) {
		check(t, os.WriteFile(path(doc.key)+".new", []byte(doc.text), 0o600))
		check(t, os.Rename(path(doc.key)+".new", path(doc.key)))
	}
	for _, key := range strings.Fields(s.delete) {
		check(t, os.Remove(path(key)))
	}
}

func (f files) want(s step, all, _ map[string]string) (string, map[string]string) {
	return s.wantFiles, all
}

func TestScenariosOnFiles(t *testing.T) {
	for name, steps := range scenarios(t) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			snapshots, err := watch.Files(t.Context(), dir, cluster.DefaultConfig())
			check(t, err)
			play(t, steps, files{dir}, &newest{from: snapshots})
		})
	}
	wantNoGoroutines(t)
}

// describe returns a Snapshot as text, a line per fact, without default values.
func describe(s *cluster.Snapshot) string {
	var b strings.Builder
	for _, n := range s.Nodes {
		fmt.Fprintf(&b, "node %s id=%d addresses=%s host=%s pods=%s zone=%s gateway=%s %s %s %s\n",
			n.Name, n.ID, n.Addresses, n.HostAddresses, n.PodCIDRs, n.Zone, n.Gateway.Mode, n.Gateway.Bridge,
			n.Gateway.MAC, n.Gateway.Addresses)
	}
	for _, p := range s.Pods {
		fmt.Fprintf(&b, "pod %s/%s on %s %s %s", p.Owner.Namespace, p.Owner.Name, p.Node, p.IPs, p.MAC)
		if p.Ports != nil {
			fmt.Fprintf(&b, " ports=%v", p.Ports)
		}
		b.WriteString("\n")
	}
	for _, p := range s.Policies {
		fmt.Fprintf(&b, "policy %s/%s ingress=%v,%d egress=%v,%d\n", p.Owner.Namespace, p.Owner.Name,
			p.Ingress.Isolates, len(p.Ingress.Rules), p.Egress.Isolates, len(p.Egress.Rules))
	}
	for _, f := range s.Frontends {
		fmt.Fprintf(&b, "service %s %s", f.Key(), netip.AddrPortFrom(f.ClusterIP, f.Port))
		for _, w := range []struct {
			is   bool
			text string
		}{
			{f.NodePort != 0, fmt.Sprintf("nodePort=%d", f.NodePort)},
			{f.ExternalIPs != nil, fmt.Sprintf("external=%s", f.ExternalIPs)},
			{f.LoadBalancerIPs != nil, fmt.Sprintf("lb=%s", f.LoadBalancerIPs)},
			{f.Affinity != 0, fmt.Sprintf("affinity=%s", f.Affinity)},
			{f.ExternalLocal, "etp=Local"}, {f.InternalLocal, "itp=Local"},
			{!f.Triggered.IsZero(), "triggered=" + f.Triggered.Format(time.RFC3339Nano)},
		} {
			if w.is {
				b.WriteString(" " + w.text)
			}
		}
		b.WriteString("\n")
		for _, e := range f.Backends {
			fmt.Fprintf(&b, "  %s node=%s zone=%s ready=%v serving=%v terminating=%v zones=%v nodes=%v\n",
				netip.AddrPortFrom(e.Addr, e.Port),
				e.Node, e.Zone, e.Ready, e.Serving, e.Terminating, e.ForZones, e.ForNodes)
		}
	}
	for _, p := range s.Problems {
		fmt.Fprintf(&b, "problem %s\n", p.Error())
	}
	return b.String()
}
