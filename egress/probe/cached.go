package probe

import (
	"fmt"
	"os"
	"sync"
	"syscall"
)

// cached is a value that is loaded from files, and loaded again when the time, size or inode of one
// changes. A check costs a stat, so that a client cannot make the process read and parse for each
// connection.
type cached[T any] struct {
	files []string
	load  func() (T, error)

	mu    sync.Mutex
	state string // of the files from which value was loaded
	value T
}

func (c *cached[T]) get() (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := ""
	for _, name := range c.files {
		info, err := os.Stat(name)
		if err != nil {
			return *new(T), err // err names the file
		}
		state += fmt.Sprintln(info.ModTime(), info.Size(), info.Sys().(*syscall.Stat_t).Ino)
	}
	if state == c.state {
		return c.value, nil
	}
	value, err := c.load()
	if err != nil {
		return *new(T), err
	}
	c.value, c.state = value, state
	return value, nil
}
