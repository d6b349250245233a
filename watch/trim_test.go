package watch

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"hairpin/cluster"
	"hairpin/cluster/store"
)

// TestTrim: the Store does not read what trim drops, for every object of the scenarios.
func TestTrim(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	objects := 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, section := range txtar.Parse(text).Files {
			if section.Name != "set" && section.Name != "refused" {
				continue
			}
			for _, m := range parseFile(path, section.Data).manifests {
				whole, trimmed := store.New(cluster.Config{}), store.New(cluster.Config{})
				whole.Set(m.object)
				m.object.(metav1.Object).SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "x"}})
				if err := trim(m.object.(runtime.Object)); err != nil {
					t.Fatal(err)
				}
				if m.object.(metav1.Object).GetManagedFields() != nil {
					t.Errorf("%s has managed fields", m.owner)
				}
				trimmed.Set(m.object)
				if !reflect.DeepEqual(whole.Snapshot(), trimmed.Snapshot()) {
					t.Errorf("%s means something else now", m.owner)
				}
				objects++
			}
		}
	}
	if objects < 40 {
		t.Errorf("only %d objects", objects)
	}
}
