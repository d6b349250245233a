package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"hairpin/lab/cluster"
)

// ErrFailed reports that a spec failed; the table has the details.
var ErrFailed = errors.New("not every spec passed")

// Options describe the specs to run.
type Options struct {
	Root        string // of the sources, with the results of make in bin and dist
	Focus, Skip string // regular expressions of specs' names
	Procs       int    // number of parallel specs, except for [Serial] ones
	Record      string // file that keeps the results of all runs; empty = none
	Out         io.Writer
}

type run struct {
	Options
	cluster *cluster.Cluster
	begin   time.Time
}

// Run runs specs on a running cluster and prints a table of them. It writes
// dist/conformance/junit_01.xml and, in the same folder, the output of the specs.
func Run(ctx context.Context, c *cluster.Cluster, opt Options) error {
	r := &run{opt, c, time.Now()}
	if err := r.writeImages(ctx); err != nil {
		return fmt.Errorf("images of the specs: %w", err)
	}
	if err := c.Import(ctx, archive); err != nil {
		return fmt.Errorf("images of the specs: %w", err)
	}
	r.say("images: all nodes have them")
	dir, err := filepath.Abs(filepath.Join(r.Root, "dist", "conformance"))
	if err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	if err := c.LinkKubectl(); err != nil {
		return err
	}
	log := filepath.Join(dir, "e2e.log")
	ended := r.specs(ctx, dir, log) // also an error if a spec failed: the report distinguishes them
	results, err := readReport(filepath.Join(dir, "junit_01.xml"))
	if err != nil {
		return fmt.Errorf("%w (%s says what happened)", errors.Join(ended, err), log)
	}
	failed := printTable(r.Out, results)
	if r.Record != "" {
		if err := record(r.Record, results); err != nil {
			return err
		}
	}
	r.say("%s has the reports", dir)
	if failed || ended != nil {
		return ErrFailed
	}
	return nil
}

// specs runs e2e.test, several at once as ginkgo does.
func (r *run) specs(ctx context.Context, dir, log string) error {
	kubectl, err := filepath.Abs(filepath.Join(r.Root, "bin", "kubectl"))
	if err != nil {
		return err
	}
	file, err := os.Create(log)
	if err != nil {
		return err
	}
	defer file.Close()
	args := []string{
		"-v", "--no-color", "--keep-going", "--timeout=6h", "--procs", strconv.Itoa(r.Procs), "--focus", r.Focus,
		"--skip", r.Skip, r.program("e2e.test"), "--",
		// only the first of several processes would count them
		"--num-nodes", strconv.Itoa(len(r.cluster.Lab().Nodes())),
		"--kubeconfig", r.cluster.Kubeconfig(), "--kubectl-path", kubectl, "--provider=skeleton", "--report-dir", dir,
	}
	cmd := exec.CommandContext(ctx, r.program("ginkgo"), args...)
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
		return fmt.Errorf("run ginkgo: %w", err)
	}
	r.follow(io.TeeReader(out, file))
	return cmd.Wait()
}

var (
	willRun  = regexp.MustCompile(`^Will run (\d+) of`)
	specDone = regexp.MustCompile(`^• (\[FAILED\] )?\[`)
)

// follow reads the output of ginkgo and reports its progress every ten seconds.
func (r *run) follow(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	total, done, failed := "?", 0, 0
	said := time.Now()
	for lines.Scan() {
		if m := willRun.FindStringSubmatch(lines.Text()); m != nil {
			total = m[1]
			r.say("%s specs", total)
		}
		if m := specDone.FindStringSubmatch(lines.Text()); m != nil {
			done++
			if m[1] != "" {
				failed++
			}
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			r.say("%d of %s specs done, %d failed", done, total, failed)
		}
	}
	_, _ = io.Copy(io.Discard, out) // after a line that is too long
}

// program returns the path of a program that make built from module suite.
func (r *run) program(name string) string { return filepath.Join(r.Root, "bin", "conformance", name) }

func (r *run) say(format string, args ...any) {
	fmt.Fprintf(r.Out, "%6.1f s  %s\n", time.Since(r.begin).Seconds(), fmt.Sprintf(format, args...))
}
