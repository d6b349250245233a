package ovsdb_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// image returns the root of the node image, whose ovsdb-server the tests run.
func image(tb testing.TB) string {
	tb.Helper()
	for _, root := range []string{os.Getenv("HAIRPIN_IMAGE"), "/var/cache/hairpin/image", "/tmp/trixie"} {
		if root == "" {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, "usr/sbin/ovsdb-server")); err == nil {
			return root
		}
	}
	tb.Fatal("no node image with an ovsdb-server: run `make image`, or set HAIRPIN_IMAGE to the root of one")
	return ""
}

// command runs a program of the image with the image's own loader and libraries, so that it needs
// no chroot.
func command(tb testing.TB, program string, args ...string) *exec.Cmd {
	root := image(tb)
	lib := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	cmd := exec.Command(filepath.Join(root, "lib64/ld-linux-x86-64.so.2"),
		append([]string{"--library-path", lib, filepath.Join(root, program)}, args...)...)
	return cmd
}

func run(tb testing.TB, program string, args ...string) {
	tb.Helper()
	if out, err := command(tb, program, args...).CombinedOutput(); err != nil {
		tb.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
}

// Schemas of the image.
const (
	nbSchema  = "usr/share/ovn/ovn-nb.ovsschema"
	sbSchema  = "usr/share/ovn/ovn-sb.ovsschema"
	ovsSchema = "usr/share/openvswitch/vswitch.ovsschema"
)

// server is an ovsdb-server with one database in a directory of the test.
type server struct {
	tb       testing.TB
	dir      string
	endpoint string
	remotes  []string
	cmd      *exec.Cmd
}

// startServer starts a server with an empty database. More remotes than its socket may be given.
func startServer(tb testing.TB, schema string, remotes ...string) *server {
	s := newServer(tb, remotes...)
	run(tb, "usr/bin/ovsdb-tool", "create", s.file("db"), filepath.Join(image(tb), schema))
	s.start()
	return s
}

// startCluster starts a cluster of one: only such a server has a history of transactions, from
// which to resume.
func startCluster(tb testing.TB, schema string) *server {
	s := newServer(tb)
	run(tb, "usr/bin/ovsdb-tool", "create-cluster", s.file("db"), filepath.Join(image(tb), schema), "unix:"+
		s.file("raft"))
	s.start()
	return s
}

func newServer(tb testing.TB, remotes ...string) *server {
	dir := shortDir(tb)
	s := &server{tb: tb, dir: dir, endpoint: "unix:" + filepath.Join(dir, "s"),
		remotes: append(remotes, "punix:"+filepath.Join(dir, "s"))}
	tb.Cleanup(s.kill)
	return s
}

// shortDir is t.TempDir with a name that is short enough for a unix socket (107 bytes).
func shortDir(tb testing.TB) string {
	dir, err := os.MkdirTemp("", "ovsdb")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (s *server) file(name string) string { return filepath.Join(s.dir, name) }

// start starts the server and waits until it listens.
func (s *server) start() {
	s.tb.Helper()
	args := []string{"-vconsole:off", "--log-file=" + s.file("log"), "--unixctl=" + s.file("ctl")}
	for _, r := range s.remotes {
		args = append(args, "--remote="+r)
	}
	s.cmd = command(s.tb, "usr/sbin/ovsdb-server", append(args, s.file("db"))...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
	eventually(s.tb, "ovsdb-server listens", func() bool {
		conn, err := net.Dial("unix", s.file("s"))
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// kill kills the server as a crash would.
func (s *server) kill() {
	if s.cmd == nil {
		return
	}
	s.cmd.Process.Kill()
	s.cmd.Wait()
	s.cmd = nil
	os.Remove(s.file("s"))
}

func (s *server) restart() {
	s.tb.Helper()
	s.kill()
	s.start()
}

// wipe starts the server again with an empty database.
func (s *server) wipe(schema string) {
	s.tb.Helper()
	s.kill()
	os.Remove(s.file("db"))
	run(s.tb, "usr/bin/ovsdb-tool", "create", s.file("db"), filepath.Join(image(s.tb), schema))
	s.start()
}

// eventually polls a condition for at most ten seconds.
func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("after 10 s still not true: %s", what)
		}
	}
}

// timeout is a context for one step of a test.
func timeout(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the race detector makes all slow
	tb.Cleanup(cancel)
	return ctx
}
