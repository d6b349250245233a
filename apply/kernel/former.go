package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// formerLock is held while a formerFile is read and written again: Read and Apply may run at the
// same time.
var formerLock sync.Mutex

// formerFile is a file with the values that sysctls had before they were changed, by path. It must
// be in a folder that a reboot clears, because a reboot resets sysctls, too.
type formerFile string

// load returns the values; none if the file cannot be read.
func (f formerFile) load() map[string]string {
	values := map[string]string{}
	if text, err := os.ReadFile(string(f)); err == nil && json.Unmarshal(text, &values) != nil {
		return map[string]string{}
	}
	return values
}

func (f formerFile) store(values map[string]string) error {
	text, err := json.Marshal(values)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(string(f)), 0o755)
	}
	if err == nil {
		err = os.WriteFile(string(f)+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(string(f)+".new", string(f))
	}
	if err != nil {
		return fmt.Errorf("record former sysctls: %w", err)
	}
	return nil
}

// keep records the current value of a sysctl, if none is recorded yet.
func (f formerFile) keep(path string) error {
	if f == "" {
		return nil
	}
	formerLock.Lock()
	defer formerLock.Unlock()
	values := f.load()
	if _, known := values[path]; known {
		return nil
	}
	text, err := os.ReadFile(sysctlFile(path))
	if err != nil {
		return nil // the write that follows reports the error
	}
	values[path] = strings.TrimSpace(string(text))
	return f.store(values)
}

// restore restores sysctls to their former values, and deletes these records. It skips sysctls of
// removed links.
func (f formerFile) restore(paths []string) error {
	formerLock.Lock()
	defer formerLock.Unlock()
	values := f.load()
	if len(values) == 0 {
		return nil
	}
	var errs []error
	for _, path := range paths {
		value, known := values[path]
		if !known || !filepath.IsLocal(path) {
			continue
		}
		if err := os.WriteFile(sysctlFile(path), []byte(value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("sysctl -w %s=%s: %w", path, value, err))
			continue
		}
		delete(values, path)
	}
	return errors.Join(append(errs, f.store(values))...)
}

// forget removes the values of sysctls of removed links: a new link of that name has its own
// values.
func (f formerFile) forget(removed []string) error {
	if f == "" || len(removed) == 0 {
		return nil
	}
	formerLock.Lock()
	defer formerLock.Unlock()
	values := f.load()
	before := len(values)
	for _, path := range removed {
		delete(values, path)
	}
	if len(values) == before {
		return nil
	}
	return f.store(values)
}

// RestoreSysctls restores all changed sysctls to their former values, in the caller's network
// namespace. file is that of Config.Former.
func RestoreSysctls(file string) error {
	f := formerFile(file)
	values := f.load()
	if len(values) == 0 {
		return nil
	}
	if err := f.restore(slices.Sorted(maps.Keys(values))); err != nil {
		return err
	}
	return os.Remove(file)
}
