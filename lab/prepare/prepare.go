// Package prepare installs and builds the parts of a demo in parallel: Debian packages, Hairpin's
// programs, and the node image. It has few dependencies, so that it compiles in seconds where
// nothing was compiled before.
package prepare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"

	"hairpin/image"
	"hairpin/lab/progress"
)

// Run works in the top folder of the sources, and writes the programs to a folder there. ovs
// selects the node image; see image.Node.
func Run(ctx context.Context, out io.Writer, bin, ovs string) error {
	list, err := image.Node(ovs)
	if err != nil {
		return err
	}
	b := progress.New(out)
	defer b.Close()
	var wg sync.WaitGroup
	var errs [2]error
	wg.Go(func() { errs[0] = b.Each("programs", func(s *progress.Step) error { return programs(ctx, s, bin) }) })
	wg.Go(func() {
		errs[1] = b.Each("Debian packages", func(s *progress.Step) error { return setup(ctx, s) })
		if errs[1] == nil {
			errs[1] = b.Each("node image", func(s *progress.Step) error {
				_, err := list.Build(ctx, image.DefaultDir, func(line string) { s.Say("%s", line) })
				return err
			})
		}
	})
	wg.Wait()
	return errors.Join(errs[:]...)
}

// programs builds the programs, and counts the compiled packages.
func programs(ctx context.Context, s *progress.Step, bin string) error {
	packages := []string{"./cmd/hairpin", "./cmd/lab"}
	var all atomic.Int64
	var counting sync.WaitGroup
	defer counting.Wait()
	counting.Go(func() { // in parallel with the build: only for the display
		if list, err := exec.CommandContext(ctx, "go",
			append([]string{"list", "-deps"}, packages...)...).Output(); err == nil {
			all.Store(int64(bytes.Count(list, []byte("\n"))))
		}
	})
	var modules, compiled int
	each := func(line string) {
		switch {
		case strings.HasPrefix(line, "go: downloading "):
			modules++
			s.Say("%d modules downloaded", modules)
		case all.Load() == 0:
			compiled++
			s.Say("%d packages compiled", compiled)
		default: // some may have been compiled before
			compiled++
			s.Say("%d packages compiled, up to %d to go", compiled, max(0, int(all.Load())-compiled))
		}
	}
	return command(ctx, each, "go", append([]string{"build", "-v", "-o", bin + "/"}, packages...)...)
}

// setup installs the Debian packages that the machine lacks.
func setup(ctx context.Context, s *progress.Step) error {
	return command(ctx, func(line string) { s.Say("%s", line) }, "lab/setup.sh")
}

// command runs a command; the error has its last lines.
func command(ctx context.Context, each func(line string), name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	var last []string
	out := &progress.Lines{Each: func(line string) {
		last = append(last, line)
		last = last[max(0, len(last)-30):]
		each(line)
	}}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, strings.Join(last, "\n"))
	}
	return nil
}
