package watch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"hairpin/cluster"
	"hairpin/cluster/store"
)

// quietTime is how long a changed directory must be quiet before it is read: an editor or `cp`
// writes in several steps.
const quietTime = 20 * time.Millisecond

// ReadFiles reads all manifests (*.yaml, *.yml, *.json) of a folder once. An unreadable document
// becomes a Problem of the Snapshot; only an unreadable folder is an error.
func ReadFiles(dir string, config cluster.Config) (*cluster.Snapshot, error) {
	f := newFolder(dir, config)
	if err := f.read(); err != nil {
		return nil, err
	}
	return f.snapshot(), nil
}

// ParseManifests reads manifests from one text, as `---`-separated documents.
func ParseManifests(text []byte, config cluster.Config) *cluster.Snapshot {
	f := newFolder("", config)
	f.update([]*file{parseFile("input", text)})
	return f.snapshot()
}

// Files reads the folder now and whenever it changes, until ctx ends. Add a file by a rename: one
// that is written slowly may be read in part. A deleted folder keeps its objects, and has a
// Problem, until it exists again.
func Files(ctx context.Context, dir string, config cluster.Config) (<-chan *cluster.Snapshot, error) {
	w, err := watchFolder(dir)
	if err != nil {
		return nil, err
	}
	f := newFolder(dir, config)
	if err := f.read(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	out := newFeed()
	out.put(f.snapshot())
	go f.follow(ctx, w, out)
	return out, nil
}

// folderCheck is how often follow checks whether the path still leads to the watched folder: a
// mount over a folder causes no event.
const folderCheck = time.Second

// folderWatch reports changes of a folder.
type folderWatch struct {
	*fsnotify.Watcher
	info os.FileInfo
}

func watchFolder(dir string) (*folderWatch, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	info, err := os.Stat(dir) // before: if another folder replaces it meanwhile, replaced detects that
	if err == nil {
		err = w.Add(dir)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", dir, err), w.Close())
	}
	return &folderWatch{w, info}, nil
}

// replaced reports whether the watched folder is gone, or another one has its name.
func (w *folderWatch) replaced(dir string) bool {
	now, err := os.Stat(dir)
	// A folder that replaces a deleted one may have the same inode number, but has no watch.
	return err != nil || !os.SameFile(w.info, now) || len(w.WatchList()) == 0
}

// folder is the content of a directory at the last reading.
type folder struct {
	dir      string
	store    *store.Store
	files    []*file               // by name
	seen     map[cluster.Owner]any // the objects in the store
	problems []cluster.Problem     // of files, and of manifests that are not objects
	failed   error                 // error of the last reading, which then changed nothing

	last         *cluster.Snapshot // the newest Snapshot, and the values that it was made of
	lastStored   *cluster.Snapshot
	lastProblems []cluster.Problem
}

func newFolder(dir string, config cluster.Config) *folder {
	return &folder{dir: dir, store: store.New(config), seen: map[cluster.Owner]any{}}
}

func (f *folder) follow(ctx context.Context, w *folderWatch, out feed) {
	defer func() { _ = w.Close() }()
	quiet := time.NewTimer(0)
	<-quiet.C
	check := time.NewTicker(folderCheck)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.Events:
			quiet.Reset(quietTime)
			continue
		case <-w.Errors: // events were lost: read again
			quiet.Reset(quietTime)
			continue
		case <-check.C:
			if !w.replaced(f.dir) {
				continue
			}
			if other, err := watchFolder(f.dir); err == nil {
				_ = w.Close()
				w = other
			}
		case <-quiet.C:
		}
		before := f.last
		f.failed = f.read()
		if f.snapshot() != before {
			out.put(f.last)
		}
	}
}

// read parses the files that changed since the last reading.
func (f *folder) read() error {
	entries, err := os.ReadDir(f.dir) // sorted
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	var files []*file
	for _, e := range entries {
		name := e.Name()
		if !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(f.dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted meanwhile, which is another event
		}
		i, old := slices.BinarySearchFunc(f.files, name,
			func(x *file, name string) int { return cmp.Compare(x.name, name) })
		switch {
		case err != nil:
			files = append(files, &file{name: name, problems: []cluster.Problem{fileProblem(name, "", err)}})
		case old && bytes.Equal(f.files[i].text, text):
			files = append(files, f.files[i])
		default:
			files = append(files, parseFile(name, text))
		}
	}
	f.update(files)
	return nil
}

// update passes the differences to the store.
func (f *folder) update(files []*file) {
	f.problems = nil
	now := map[cluster.Owner]any{}
	for _, x := range files {
		f.problems = append(f.problems, x.problems...)
		for _, m := range x.manifests {
			if _, duplicate := now[m.owner]; duplicate {
				f.problems = append(f.problems,
					cluster.Problem{Owner: m.owner, Message: fmt.Sprintf("is in %s again; the first is used", x.name)})
				continue
			}
			now[m.owner] = m.object
			if f.seen[m.owner] != m.object {
				f.store.Set(m.object)
			}
		}
	}
	for owner, object := range f.seen {
		if _, ok := now[owner]; !ok {
			f.store.Delete(object)
		}
	}
	f.files, f.seen = files, now
}

// snapshot returns the newest Snapshot, the previous one if nothing changed.
func (f *folder) snapshot() *cluster.Snapshot {
	s := f.store.Snapshot()
	problems := slices.Clone(f.problems)
	if f.failed != nil {
		problems = append(problems, fileProblem(f.dir, "", f.failed))
	}
	problems = cluster.SortProblems(problems)
	if f.lastStored == s && slices.Equal(f.lastProblems, problems) {
		return f.last
	}
	f.lastStored, f.lastProblems = s, problems
	out := *s
	out.Problems = cluster.SortProblems(slices.Concat(problems, s.Problems))
	f.last = &out
	return f.last
}
