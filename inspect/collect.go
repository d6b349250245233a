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

// CollectOptions select the agents and the connection to them.
type CollectOptions struct {
	EveryNode bool // through the API server, instead of this node's agent
	Context   string
	Namespace string
	Timeout   time.Duration
}

// member is a file of the archive.
type member struct {
	name string
	body []byte
}

// missing is something that an archive lacks.
type missing struct {
	node, name string // name: of the file; empty if err names what is missing
	err        error
}

// Limits of a log: only its end is taken.
const (
	maxLog      = 2 << 20 // bytes
	maxLogLines = 20000
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
	var lacks []missing
	if o.EveryNode {
		e, err := NewEveryNode(StatusOptions{Kubeconfig: c.Process.Kubeconfig, Context: o.Context,
			Namespace: o.Namespace, Timeout: o.Timeout})
		if err != nil {
			return err
		}
		if list, lacks, err = e.collect(ctx, errw); err != nil {
			return err
		}
	} else {
		list, lacks = collectNode(ctx, c)
	}
	if err := archive(w, list); err != nil {
		return err
	}
	printMissing(errw, lacks)
	if len(lacks) > 0 {
		return report.ErrProblems
	}
	return nil
}

// printMissing writes a line for each node and reason.
func printMissing(w io.Writer, lacks []missing) {
	var g groups
	for _, m := range lacks {
		g.add(m.node+"\x00"+m.err.Error(), m.name)
	}
	for _, key := range g.texts {
		node, why, _ := strings.Cut(key, "\x00")
		if names := g.nodes[key]; names[0] != "" {
			fmt.Fprintf(w, "%s: could not get %s: %s\n", node, firstAndCount(names), why)
			continue
		}
		for line := range strings.Lines(why) {
			fmt.Fprintf(w, "%s: %s\n", node, strings.TrimPrefix(strings.TrimSuffix(line, "\n"), node+": "))
		}
	}
}

// collectNode collects the files of this node. The kernel's files may be absent.
func collectNode(ctx context.Context, c config.Config) (list []member, lacks []missing) {
	node := c.Process.Node
	if node == "" {
		node, _ = os.Hostname() // without a name, the error still has the reason
	}
	list = []member{{"version.txt", []byte(report.Version() + "\n")}}
	for _, x := range agentFiles() {
		body, err := FromAgent(ctx, c, x.path)
		list = append(list, fileOrError(x.name, body, err))
		if err != nil {
			lacks = append(lacks, missing{node, x.name, err})
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
				lacks = append(lacks, missing{node, name, err})
			}
		}
	}
	return list, lacks
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
func (e *everyNode) collect(ctx context.Context, errw io.Writer) ([]member, []missing, error) {
	nodes, err := e.Client.Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("list nodes: %w", err)
	}
	pods, err := e.Client.Pods(e.options.Namespace).List(ctx, metav1.ListOptions{LabelSelector: agentSelector})
	if err != nil {
		return nil, nil, fmt.Errorf("list the agents' pods: %w", err)
	}
	all, lack := make([][]member, len(pods.Items)), make([][]missing, len(pods.Items), len(pods.Items)+1)
	var g errgroup.Group
	g.SetLimit(10)
	for i := range pods.Items {
		g.Go(func() error {
			all[i], lack[i] = e.collectPod(ctx, errw, &pods.Items[i])
			return nil
		})
	}
	_ = g.Wait() // lack has the errors
	var without []missing
	for _, n := range nodes.Items {
		if !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName == n.Name }) {
			without = append(without, missing{n.Name, "",
				errors.New("no agent's pod in namespace " + e.options.Namespace)})
		}
	}
	return slices.Concat(all...), slices.Concat(append(lack, without)...), nil
}

func (e *everyNode) collectPod(ctx context.Context, errw io.Writer, pod *corev1.Pod) (list []member,
	lacks []missing) {
	node := pod.Spec.NodeName
	fmt.Fprintf(errw, "%s: %s\n", node, pod.Name)
	out, err := e.exec(ctx, pod, maxArchive, "hairpin", "collect", "--file=-")
	list, bad := unpack(out, maxUnpacked) // also of a command that could not get everything
	if err == nil {
		err = bad
	}
	if err != nil {
		lacks = append(lacks, missing{node, "", err})
	}
	if bad != nil {
		list = append(list, fileOrError("collect.txt", nil, err))
	}
	for _, k := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		text, err := e.log(ctx, pod, k.Name)
		name := slashpath.Join("logs", pod.Name, k.Name+".log")
		list = append(list, fileOrError(name, text, err))
		if err != nil {
			lacks = append(lacks, missing{node, name, err})
		}
	}
	for i := range list {
		list[i].name = slashpath.Join(node, list[i].name)
	}
	return list, lacks
}

// log returns the end of a container's log.
func (e *everyNode) log(ctx context.Context, pod *corev1.Pod, container string) ([]byte, error) {
	lines := int64(maxLogLines)
	r, err := e.Client.Log(pod, &corev1.PodLogOptions{Container: container, TailLines: &lines}).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // only read
	text, err := io.ReadAll(io.LimitReader(r, 4*maxLog+1))
	if err == nil && len(text) > 4*maxLog {
		text, err = text[:4*maxLog], errTooLong
	}
	return text, err
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
	var list []member
	left := limit
	for r := tar.NewReader(io.LimitReader(z, 2*limit+maxMembers<<12)); ; { // headers and padding, too
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
