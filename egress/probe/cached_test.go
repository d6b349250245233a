package probe

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Files are read once until one of them changes; a failed load is not cached.
func TestCached(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	loads := 0
	c := &cached[string]{files: []string{name}, load: func() (string, error) {
		loads++
		text, err := os.ReadFile(name)
		if string(text) == "bad" {
			return "", errors.New("bad")
		}
		return string(text), err
	}}
	write := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(name+".new", []byte(text), 0o600),
			os.Rename(name+".new", name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.get(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for i, step := range []struct {
		text, want string
		loads      int
	}{{"one", "one", 1}, {"two", "two", 2}, {"bad", "", 5}, {"one", "one", 6}} {
		write(step.text)
		for range 3 {
			got, err := c.get()
			if got != step.want || (err != nil) != (step.want == "") {
				t.Errorf("step %d: %q, %v", i, got, err)
			}
		}
		if loads != step.loads {
			t.Errorf("step %d: read %d times, want %d", i, loads, step.loads)
		}
	}
}
