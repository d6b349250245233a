package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"hairpin/lab/cluster"
)

// ErrFailed reports that a test failed; the table has the details.
var ErrFailed = errors.New("not every test passed")

// Options describe the tests to run.
type Options struct {
	Root   string // of the sources, with the results of make in bin and dist
	Suite  string // "kubernetes", "network-policy-api" or "cyclonus"
	Focus  string // kubernetes, cyclonus: regular expression of the names of specs or cases
	Skip   string // kubernetes: regular expression of specs' names
	Procs  int    // kubernetes: number of parallel specs, except for [Serial] ones
	Tags   string // cyclonus: tags of cases, separated by commas; empty = all cases
	Record string // file that keeps the results of all runs; empty = none
	Out    io.Writer
}

type run struct {
	Options
	suite
	cluster   *cluster.Cluster
	root, dir string // absolute paths: of the sources, of the reports
	version   string // of Hairpin
	begin     time.Time
}

// Run runs tests of a suite on a running cluster and prints a table of them. It writes the suite's
// reports and its output, output.log, to dist/conformance/SUITE.
func Run(ctx context.Context, c *cluster.Cluster, opt Options) error {
	s, ok := suites[opt.Suite]
	if !ok {
		return fmt.Errorf("unknown suite %q: there are %s", opt.Suite,
			strings.Join(slices.Sorted(maps.Keys(suites)), ", "))
	}
	root, err := filepath.Abs(opt.Root)
	if err != nil {
		return err
	}
	r := &run{Options: opt, suite: s, cluster: c, root: root,
		dir:   filepath.Join(root, "dist", "conformance", opt.Suite),
		begin: time.Now()}
	if r.version, err = r.output(ctx, filepath.Join(root, "bin", "hairpin"), "version"); err != nil {
		return err
	}
	if err := r.writeImages(ctx); err != nil {
		return fmt.Errorf("images of the tests: %w", err)
	}
	if err := c.Import(ctx, archive); err != nil {
		return fmt.Errorf("images of the tests: %w", err)
	}
	r.say("images: all nodes have them")
	if err := errors.Join(os.RemoveAll(r.dir), os.MkdirAll(r.dir, 0o755), c.LinkKubectl()); err != nil {
		return err
	}
	if r.prepare != nil {
		if err := r.prepare(ctx, r); err != nil {
			return fmt.Errorf("prepare the cluster: %w", err)
		}
	}
	ended := r.execute(ctx) // also an error if a test failed: the report distinguishes them
	results, err := r.results(r)
	if err != nil {
		return fmt.Errorf("%w (%s says what happened)", errors.Join(ended, err), r.log())
	}
	failed := printTable(r.Out, results)
	if r.Record != "" {
		if err := record(r.Record, results); err != nil {
			return err
		}
	}
	r.say("%s has the reports", r.dir)
	if failed || ended != nil {
		return ErrFailed
	}
	return nil
}

// log returns the path of the suite's output.
func (r *run) log() string { return filepath.Join(r.dir, "output.log") }

// execute runs the suite's program and writes its output to the log.
func (r *run) execute(ctx context.Context) error {
	file, err := os.Create(r.log())
	if err != nil {
		return err
	}
	defer file.Close()
	argv := r.argv(r)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.cluster.Kubeconfig())
	// a second signal, such as that of the terminal, would end it at once
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// so that it deletes its objects, and reports
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 3 * time.Minute
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = file
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run %s: %w", argv[0], err)
	}
	r.follow(io.TeeReader(out, file))
	return cmd.Wait()
}

// follow reads the output of the suite and reports its progress every ten seconds.
func (r *run) follow(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	of, done, failed := "", 0, 0
	said := time.Now()
	for lines.Scan() {
		if r.total != nil {
			if m := r.total.FindStringSubmatch(lines.Text()); m != nil {
				of = " of " + m[1]
				r.say("%s tests", m[1])
			}
		}
		if m := r.done.FindStringSubmatch(lines.Text()); m != nil {
			done++
			if m[1] != "" {
				failed++
			}
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			r.say("%d%s tests done, %d failed", done, of, failed)
		}
	}
	_, _ = io.Copy(io.Discard, out) // after a line that is too long
}

// program returns the path of a program or file that make took from the suites' modules.
func (r *run) program(name string) string { return filepath.Join(r.root, "bin", "conformance", name) }

func (r *run) say(format string, args ...any) {
	fmt.Fprintf(r.Out, "%6.1f s  %s\n", time.Since(r.begin).Seconds(), fmt.Sprintf(format, args...))
}
