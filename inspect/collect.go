package inspect

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	slashpath "path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/config"
	"hairpin/report"
)

// CollectOptions select the agents.
type CollectOptions struct {
	All bool // every node of the cluster, instead of this one
	ClusterOptions
}

// member is a file of the archive.
type member struct {
	name string
	body []byte
}

// missing is a file of a node that is not in the archive, or not complete.
type missing struct {
	node, file string // file: empty if err names it
	err        error
}

// Limits of a log: only its end is in the archive.
const (
	maxLog      = 2 << 20 // of a daemon, in bytes
	maxPodLog   = 8 << 20 // of a container, in bytes
	maxPodLines = 20000
)

// Limits of a node's archive.
const (
	maxMembers  = 1000
	maxUnpacked = 512 << 20 // bytes
)

// agentFiles lists the agent's answers in the archive, by name.
func agentFiles() []struct{ name, path string } {
	return []struct{ name, path string }{
		{"report.json", "/report"}, {"configuration.txt", "/configuration"}, {"snapshot.json", "/snapshot"},
		{"wanted.txt", "/wanted"},
		{"found.txt", "/found"}, {"differences.txt", "/diff"}, {"counters.txt", "/counters"},
		{"metrics.txt", "/metrics"},
	}
}

// kernelFiles returns files about the kernel that every user may read.
func kernelFiles() []string {
	return []string{
		"/proc/version", "/proc/loadavg", "/proc/meminfo", "/proc/net/dev", "/proc/net/sockstat", "/proc/net/sockstat6",
		"/proc/net/snmp",
		"/proc/net/netstat", "/proc/net/stat/nf_conntrack", "/proc/sys/net/netfilter/nf_conntrack_count",
		"/proc/sys/net/netfilter/nf_conntrack_max",
	}
}

// Collect writes an archive (tar, gzip) for the diagnosis of one node or all nodes. It has desired
// state, real state, versions, counters and logs. It omits what looks like a secret, and reads no
// file with credentials. The file of a failed request has the error. Collect then reports it on
// errw, too, and returns report.ErrProblems after it has written the archive.
func Collect(ctx context.Context, w io.Writer, errw io.Writer, c config.Config, o CollectOptions) error {
	var list []member
	var incomplete []missing
	if o.All {
		a, err := Connect(o.ClusterOptions)
		if err != nil {
			return err
		}
		if list, incomplete, err = a.collect(ctx, errw); err != nil {
			return err
		}
	} else {
		list, incomplete = collectNode(ctx, c)
	}
	if err := archive(w, list); err != nil {
		return err
	}
	printMissing(errw, incomplete)
	if len(incomplete) > 0 {
		return report.ErrProblems
	}
	return nil
}

// printMissing writes a line for each node and reason.
func printMissing(w io.Writer, list []missing) {
	type key struct{ node, reason string }
	var files groups[key]
	for _, m := range list {
		files.add(key{m.node, m.err.Error()}, m.file)
	}
	for _, k := range files.keys {
		if names := files.names[k]; names[0] != "" {
			fmt.Fprintf(w, "%s: could not get %s: %s\n", k.node, firstAndCount(names), k.reason)
			continue
		}
		// The reason is the standard error of the node's command: lines that begin with its name.
		for line := range strings.Lines(k.reason) {
			fmt.Fprintf(w, "%s: %s\n", k.node, strings.TrimPrefix(strings.TrimSuffix(line, "\n"), k.node+": "))
		}
	}
}

// collectNode collects the files of this node. The kernel's files may be absent.
func collectNode(ctx context.Context, c config.Config) (list []member, incomplete []missing) {
	node := c.Process.Node
	if node == "" {
		node, _ = os.Hostname() // without a name, the error still has the reason
	}
	list = []member{{"version.txt", []byte(report.Version() + "\n")}}
	for _, x := range agentFiles() {
		body, err := FromAgent(ctx, c, x.path)
		list = append(list, fileOrError(x.name, body, err))
		if err != nil {
			incomplete = append(incomplete, missing{node, x.name, err})
		}
	}
	for _, name := range kernelFiles() {
		body, err := os.ReadFile(name)
		list = append(list, fileOrError("kernel"+strings.ReplaceAll(strings.TrimPrefix(name, "/proc"), "/", "-")+".txt",
			body, err))
	}
	for _, pattern := range []string{"/var/log/openvswitch/*.log", "/var/log/ovn/*.log"} {
		names, _ := filepath.Glob(pattern) // the patterns are good
		for _, name := range names {
			body, err := readTail(name)
			list = append(list, fileOrError(slashpath.Join("logs", filepath.Base(name)), body, err))
			if err != nil {
				incomplete = append(incomplete, missing{node, name, err})
			}
		}
	}
	return list, incomplete
}

// fileOrError returns a file of the archive: its content, and the error of reading it, if any.
func fileOrError(name string, body []byte, err error) member {
	if err != nil {
		body = append(body, []byte("could not be read: "+err.Error()+"\n")...)
	}
	return member{name, body}
}

// readTail reads the last part of a file.
func readTail(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	if info, err := f.Stat(); err == nil && info.Size() > maxLog {
		if _, err := f.Seek(-maxLog, io.SeekEnd); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, maxLog))
}

// collect requests the archive of every node's agent, and the logs of the pods.
func (a *Agents) collect(ctx context.Context, errw io.Writer) (list []member, incomplete []missing, err error) {
	listing, cancel := context.WithTimeout(ctx, a.options.Timeout)
	defer cancel()
	nodes, err := a.Client.Nodes().List(listing, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("list nodes: %w", err)
	}
	pods, err := a.Client.Pods(a.options.Namespace).List(listing, metav1.ListOptions{LabelSelector: agentSelector})
	if err != nil {
		return nil, nil, fmt.Errorf("list the agents' pods: %w", err)
	}
	files, errs := make([][]member, len(pods.Items)), make([][]missing, len(pods.Items))
	var g errgroup.Group
	g.SetLimit(10)
	for i := range pods.Items {
		g.Go(func() error {
			files[i], errs[i] = a.collectPod(ctx, errw, &pods.Items[i])
			return nil
		})
	}
	_ = g.Wait() // errs has the errors
	incomplete = slices.Concat(errs...)
	for _, n := range nodes.Items {
		if !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName == n.Name }) {
			incomplete = append(incomplete, missing{n.Name, "",
				errors.New("no agent's pod in namespace " + a.options.Namespace)})
		}
	}
	return slices.Concat(files...), incomplete, nil
}

// collectPod requests the archive of a node's agent, and the logs of its pod. If the agent's
// command could not get everything, it fails and prints an archive.
func (a *Agents) collectPod(ctx context.Context, errw io.Writer, pod *corev1.Pod) (list []member,
	incomplete []missing) {
	node := pod.Spec.NodeName
	fmt.Fprintf(errw, "%s: %s\n", node, pod.Name)
	out, err := a.exec(ctx, pod, maxArchive, "hairpin", "collect", "--file=-")
	list, unpackErr := unpack(out, maxUnpacked)
	if err == nil {
		err = unpackErr
	}
	if err != nil {
		incomplete = append(incomplete, missing{node, "", err})
	}
	if unpackErr != nil {
		list = append(list, fileOrError("collect.txt", nil, err))
	}
	for _, k := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		text, err := a.log(ctx, pod, k.Name)
		name := slashpath.Join("logs", pod.Name, k.Name+".log")
		list = append(list, fileOrError(name, text, err))
		if err != nil {
			incomplete = append(incomplete, missing{node, name, err})
		}
	}
	for i := range list {
		list[i].name = slashpath.Join(node, list[i].name)
	}
	return list, incomplete
}

// log returns the end of a container's log.
func (a *Agents) log(ctx context.Context, pod *corev1.Pod, container string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, a.options.Timeout)
	defer cancel()
	lines := int64(maxPodLines)
	r, err := a.Client.Log(pod, &corev1.PodLogOptions{Container: container, TailLines: &lines}).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // only read
	return tail(r, maxPodLog)
}

// tail returns the last bytes of r, at most limit. It has at most twice as many in memory.
func tail(r io.Reader, limit int) ([]byte, error) {
	var earlier, last bytes.Buffer
	for {
		_, err := io.CopyN(&last, r, int64(limit))
		if err == nil {
			earlier, last = last, earlier
			last.Reset()
			continue
		}
		text := append(earlier.Bytes(), last.Bytes()...)
		if err == io.EOF {
			err = nil
		}
		return text[max(0, len(text)-limit):], err
	}
}

// archive writes the members without secrets and without terminal control characters.
func archive(w io.Writer, list []member) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	now := time.Now()
	for _, m := range list {
		body := []byte(report.Plain(string(withoutSecrets(m.body)), "\n\t"))
		h := &tar.Header{Name: slashpath.Join("hairpin", m.name), Mode: 0o600, Size: int64(len(body)), ModTime: now,
			Format: tar.FormatPAX}
		err := t.WriteHeader(h)
		if err == nil {
			_, err = t.Write(body)
		}
		if err != nil {
			return fmt.Errorf("write the archive: %w", err)
		}
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return nil
}

// unpack reads an archive of at most limit bytes.
func unpack(text []byte, limit int64) ([]member, error) {
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("archive of the node: %w", err)
	}
	// The limit of the whole includes headers and padding.
	r := tar.NewReader(io.LimitReader(z, 2*limit+maxMembers*4096))
	var list []member
	for left := limit; ; {
		h, err := r.Next()
		if err == io.EOF {
			return list, nil
		}
		var body []byte
		switch {
		case err != nil:
		case len(list) == maxMembers || h.Size > left:
			err = errTooLong
		default:
			left -= h.Size
			body, err = io.ReadAll(r)
		}
		if err != nil {
			return list, fmt.Errorf("archive of the node: %w", err)
		}
		name := strings.TrimPrefix(slashpath.Clean("/"+h.Name), "/hairpin/")
		list = append(list, member{report.Plain(name, ""), body})
	}
}
