package watch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"hairpin/cluster"
)

// settle is how long a changed folder must be quiet before it is read: an editor or `cp` writes in several steps.
const settle = 20 * time.Millisecond

// ReadFiles reads all manifests (*.yaml, *.yml, *.json) of a folder once. A document that cannot be read becomes a
// Problem of the Snapshot; only a folder that cannot be read is an error.
func ReadFiles(dir string, config cluster.Config) (*cluster.Snapshot, error) {
	f := fileSet{dir: dir, store: cluster.NewStore(config), seen: map[cluster.Owner]manifest{}}
	return f.read()
}

// ParseManifests reads manifests from one text, as `---`-separated documents.
func ParseManifests(text []byte, config cluster.Config) *cluster.Snapshot {
	f := fileSet{store: cluster.NewStore(config), seen: map[cluster.Owner]manifest{}}
	now := map[cluster.Owner]manifest{}
	f.documents("input", text, now)
	return f.update(now)
}

// Files reads the folder now and whenever it changes, until ctx ends.
func Files(ctx context.Context, dir string, config cluster.Config) (<-chan *cluster.Snapshot, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	if err := w.Add(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", dir, err), w.Close())
	}
	f := fileSet{dir: dir, store: cluster.NewStore(config), seen: map[cluster.Owner]manifest{}}
	first, err := f.read()
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	out := newFeed()
	out.put(first)
	go f.follow(ctx, w, out)
	return out, nil
}

func (f *fileSet) follow(ctx context.Context, w *fsnotify.Watcher, out feed) {
	defer w.Close()
	quiet := time.NewTimer(0)
	<-quiet.C
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.Events:
			quiet.Reset(settle)
		case <-w.Errors: // events were lost: read again
			quiet.Reset(settle)
		case <-quiet.C:
			// A folder that cannot be read now keeps its last Snapshot: nothing is lost by a bad moment.
			if s, err := f.read(); err == nil {
				out.put(s)
			}
		}
	}
}

// manifest is one object of the folder and the text that it came from.
type manifest struct {
	text []byte
	obj  any
}

type fileSet struct {
	dir      string
	store    *cluster.Store
	seen     map[cluster.Owner]manifest
	problems []cluster.Problem // of the last read
}

func (f *fileSet) read() (*cluster.Snapshot, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	f.problems = nil
	now := map[cluster.Owner]manifest{}
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".yaml", ".yml", ".json":
		default:
			continue
		}
		text, err := os.ReadFile(filepath.Join(f.dir, e.Name()))
		if err != nil {
			f.problem(e.Name(), "", err)
			continue
		}
		f.documents(e.Name(), text, now)
	}
	return f.update(now), nil
}

// update tells the store what differs from the last read.
func (f *fileSet) update(now map[cluster.Owner]manifest) *cluster.Snapshot {
	for owner, m := range now {
		if old, ok := f.seen[owner]; !ok || !bytes.Equal(old.text, m.text) {
			f.store.Set(m.obj)
		} else {
			now[owner] = old
		}
	}
	for owner, m := range f.seen {
		if _, ok := now[owner]; !ok {
			f.store.Delete(m.obj)
		}
	}
	f.seen = now
	s := f.store.Snapshot()
	s.Problems = slices.Concat(f.problems, s.Problems)
	return s
}

func (f *fileSet) problem(file, field string, err error) {
	f.problems = append(f.problems, cluster.Problem{Owner: cluster.Owner{Kind: "File", Name: file}, Field: field, Message: err.Error()})
}

func (f *fileSet) documents(file string, text []byte, now map[cluster.Owner]manifest) {
	r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for n := 1; ; n++ {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		field := fmt.Sprintf("document %d", n)
		if err != nil {
			f.problem(file, field, err)
			return
		}
		j, err := yaml.YAMLToJSON(doc)
		if err != nil {
			f.problem(file, field, err)
			continue
		}
		if string(j) != "null" {
			f.object(file, field, j, now)
		}
	}
}

// object reads one object, or the items of a List.
func (f *fileSet) object(file, field string, j []byte, now map[cluster.Owner]manifest) {
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        struct{ Name, Namespace string } `json:"metadata"`
		Items           []json.RawMessage                `json:"items"`
	}
	if err := yaml.Unmarshal(j, &head); err != nil {
		f.problem(file, field, err)
		return
	}
	if strings.HasSuffix(head.Kind, "List") {
		for i, item := range head.Items {
			f.object(file, fmt.Sprintf("%s items[%d]", field, i), item, now)
		}
		return
	}
	obj, meta := newObject(head.APIVersion, head.Kind)
	if obj == nil {
		return // a kind that Hairpin does not read, such as Namespace or Deployment
	}
	owner := cluster.Owner{Kind: head.Kind, Namespace: head.Metadata.Namespace, Name: head.Metadata.Name}
	if err := yaml.Unmarshal(j, obj); err != nil {
		f.problems = append(f.problems, cluster.Problem{Owner: owner, Message: fmt.Sprintf("in %s: %v", file, err)})
		return
	}
	if meta.Namespace == "" && head.Kind != "Node" {
		meta.Namespace = metav1.NamespaceDefault
	}
	owner.Namespace = meta.Namespace
	if _, twice := now[owner]; twice {
		f.problems = append(f.problems, cluster.Problem{Owner: owner, Message: fmt.Sprintf("stands in %s again; the first is used", file)})
		return
	}
	now[owner] = manifest{text: j, obj: obj}
}

// newObject gives an empty object of a kind that the Store takes, or nil.
func newObject(apiVersion, kind string) (any, *metav1.ObjectMeta) {
	switch apiVersion + " " + kind {
	case "v1 Node":
		o := &corev1.Node{}
		return o, &o.ObjectMeta
	case "v1 Pod":
		o := &corev1.Pod{}
		return o, &o.ObjectMeta
	case "v1 Service":
		o := &corev1.Service{}
		return o, &o.ObjectMeta
	case "discovery.k8s.io/v1 EndpointSlice":
		o := &discoveryv1.EndpointSlice{}
		return o, &o.ObjectMeta
	}
	return nil, nil
}
