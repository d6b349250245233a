// Package pods runs preflight on the nodes of a cluster, in a Pod on each of them. Hairpin need not
// be installed.
package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"hairpin/config"
	"hairpin/inspect"
	"hairpin/kubeapi"
	"hairpin/preflight"
	"hairpin/report"
)

const (
	// DefaultNamespace exists before Hairpin is installed, and usually admits privileged Pods.
	DefaultNamespace = metav1.NamespaceSystem

	maxAtOnce = 50      // nodes that are checked at the same time
	maxOutput = 8 << 20 // bytes of a node's output

	pollTime   = 500 * time.Millisecond
	deleteTime = 10 * time.Second // for deleting a Pod, also after Ctrl-C
)

// Options select the nodes, and configure their Pods.
type Options struct {
	Context    string   // of the kubeconfig; empty = its current one
	Namespace  string   // of the Pods
	Image      string   // with hairpin in it
	PullSecret string   // for the image; empty = none
	Nodes      []string // by name; none = all
	Selector   string   // of the nodes' labels; empty = all
	Timeout    time.Duration
	Output     string // one of preflight.Outputs
}

// Node has the findings on a node, or the error.
type Node struct {
	Node     string              `json:"node"`
	Error    string              `json:"error,omitzero"`
	Findings []preflight.Finding `json:"findings"`
}

// checker checks nodes.
type checker struct {
	client  *kubeapi.Client
	options Options
	command []string // of the container in the Pods
}

// Run checks the nodes, and prints the findings. It returns report.ErrProblems if a finding stops
// an installation, or a node could not be checked.
func Run(ctx context.Context, w io.Writer, c config.Config, o Options) error {
	api, err := inspect.Connect(inspect.ClusterOptions{Kubeconfig: c.Process.Kubeconfig, Context: o.Context})
	if err != nil {
		return err
	}
	return run(ctx, w, api.Client, c, o)
}

func run(ctx context.Context, w io.Writer, client *kubeapi.Client, c config.Config, o Options) error {
	k := &checker{client: client, options: o, command: command(c)}
	nodes, err := k.nodes(ctx)
	if err != nil {
		return err
	}
	list := make([]Node, len(nodes))
	g, all := errgroup.WithContext(ctx)
	g.SetLimit(maxAtOnce)
	for i, n := range nodes {
		g.Go(func() error {
			found, err := k.check(all, &n)
			list[i] = Node{Node: n.Name, Findings: append([]preflight.Finding{}, found...)} // [] in JSON, not null
			if same := (*clusterError)(nil); errors.As(err, &same) {
				return err
			}
			if err != nil {
				list[i].Error = err.Error()
			}
			return nil
		})
	}
	if err := errors.Join(g.Wait(), ctx.Err()); err != nil {
		return fmt.Errorf("preflight: %w", err)
	}
	report.PlainStrings(&list)
	if err := show(w, list, o.Output); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if slices.ContainsFunc(list, func(n Node) bool { return n.Error != "" || n.blocked() }) {
		return report.ErrProblems
	}
	return nil
}

// command returns the command that checks a node, with all options that differ from their defaults.
// It omits where this process reads the cluster, and the name of its node.
func command(c config.Config) []string {
	list := []string{"hairpin", "preflight", "--root=/host", "--output=json"}
	for _, o := range config.Options() {
		if v := o.Get(c); v != o.Default() && !slices.Contains([]string{"kubeconfig", "manifests", "node"}, o.Flag()) {
			list = append(list, "--"+o.Flag()+"="+v)
		}
	}
	return list
}

// nodes returns the selected nodes that run Linux.
func (c *checker) nodes(ctx context.Context) ([]corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	all, err := c.client.Nodes().List(ctx, metav1.ListOptions{LabelSelector: c.options.Selector})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	list := all.Items
	if names := c.options.Nodes; len(names) > 0 {
		for _, name := range names {
			if !slices.ContainsFunc(list, func(n corev1.Node) bool { return n.Name == name }) {
				return nil, fmt.Errorf("--nodes: there is no node %q", name)
			}
		}
		list = slices.DeleteFunc(list, func(n corev1.Node) bool { return !slices.Contains(names, n.Name) })
	}
	list = slices.DeleteFunc(list, func(n corev1.Node) bool {
		os := n.Labels[corev1.LabelOSStable]
		return os != "" && os != string(corev1.Linux)
	})
	if len(list) == 0 {
		return nil, errors.New("no such node runs Linux")
	}
	slices.SortFunc(list, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// clusterError is an error of the API server that would be the same on every node.
type clusterError struct{ error }

// check runs a Pod on a node, and returns its findings.
func (c *checker) check(ctx context.Context, n *corev1.Node) ([]preflight.Finding, error) {
	if why := unready(n); strings.HasPrefix(why, string(corev1.ConditionUnknown)) {
		return nil, errors.New("its kubelet does not report: Ready is " + why)
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	pods := c.client.Pods(c.options.Namespace)
	pod := c.pod(n.Name)
	defer func() { // it may exist although its creation failed
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTime)
		defer cancel()
		at := int64(0)
		// activeDeadlineSeconds ends it in any case
		_ = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &at})
	}()
	if _, err := pods.Create(ctx, pod); err != nil {
		return nil, c.explained(err)
	}
	missing := errors.New("its kubelet does not start the Pod") // what the result waits for
	for {
		now, err := pods.Get(ctx, pod.Name)
		switch {
		case err == nil:
			found, done, err := c.outcome(ctx, now)
			if done {
				return found, err
			}
			if err != nil {
				missing = err
			}
		case apierrors.IsNotFound(err):
			return nil, errors.New("its Pod was deleted")
		case ctx.Err() == nil:
			missing = err
		}
		select {
		case <-ctx.Done():
			if why := unready(n); why != "" {
				missing = fmt.Errorf("%w; the node's Ready is %s", missing, why)
			}
			return nil, fmt.Errorf("no result within %s: %w", c.options.Timeout, missing)
		case <-time.After(pollTime):
		}
	}
}

// unready returns why a node is not ready, or "". A node without a network is not ready, but runs
// Pods in the host network.
func unready(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return fmt.Sprintf("%s (%s: %s)", c.Status, c.Reason, c.Message)
		}
	}
	return ""
}

// pod returns a Pod that only reads a node: it mounts the machine's files read-only.
func (c *checker) pod(node string) *corev1.Pod {
	yes, no, whole := true, false, corev1.RecursiveReadOnlyIfPossible
	life := int64((c.options.Timeout + deleteTime).Seconds()) + 1
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "hairpin-preflight-" + rand.String(8), Namespace: c.options.Namespace,
			Labels: map[string]string{"app.kubernetes.io/name": "hairpin-preflight"},
		},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: true, HostPID: true, DNSPolicy: corev1.DNSDefault,
			RestartPolicy: corev1.RestartPolicyNever, ActiveDeadlineSeconds: &life,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "preflight", Image: c.options.Image, ImagePullPolicy: corev1.PullIfNotPresent, Command: c.command,
				SecurityContext: &corev1.SecurityContext{Privileged: &yes, ReadOnlyRootFilesystem: &yes},
				VolumeMounts: []corev1.VolumeMount{{Name: "host", MountPath: "/host", ReadOnly: true,
					RecursiveReadOnly: &whole}},
			}},
			Volumes: []corev1.Volume{{Name: "host",
				VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}},
		},
	}
	if s := c.options.PullSecret; s != "" {
		p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: s}}
	}
	return p
}

// explained returns err as a clusterError, with advice, if it would be the same on every node.
func (c *checker) explained(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	switch code := status.Status().Code; {
	case code < 400 || code >= 500 || apierrors.IsTooManyRequests(err):
		return err
	case strings.Contains(err.Error(), "violates PodSecurity"):
		return &clusterError{fmt.Errorf("%w\nits Pods see the node's network, processes and files: kubectl label "+
			"namespace %s pod-security.kubernetes.io/enforce=privileged, or another --namespace",
			err, c.options.Namespace)}
	}
	return &clusterError{err}
}

// outcome returns the result of a Pod. Until it is done, the error is what it waits for.
func (c *checker) outcome(ctx context.Context, p *corev1.Pod) (found []preflight.Finding, done bool, err error) {
	var state corev1.ContainerState
	if list := p.Status.ContainerStatuses; len(list) == 1 {
		state = list[0].State
	}
	over := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	switch t, w := state.Terminated, state.Waiting; {
	case t != nil && t.Message != "": // of the container runtime: the program did not start, and writes none
		return nil, true, fmt.Errorf("%s: %s", t.Reason, t.Message)
	case t != nil:
		text, err := c.log(ctx, p)
		if err != nil {
			return nil, false, fmt.Errorf("its result cannot be read: %w", err)
		}
		found, err = parse(text, t.ExitCode)
		return found, true, err
	case over:
		return nil, true, fmt.Errorf("its kubelet rejects the Pod: %s: %s", p.Status.Reason, p.Status.Message)
	case w == nil:
		return nil, false, nil
	case slices.Contains([]string{"ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"}, w.Reason):
		return nil, true, fmt.Errorf("image %s cannot be pulled: %s: %s", c.options.Image, w.Reason, w.Message)
	case slices.Contains([]string{"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}, w.Reason):
		return nil, true, fmt.Errorf("%s: %s", w.Reason, w.Message)
	default:
		return nil, false, errors.New(strings.TrimSuffix(w.Reason+": "+w.Message, ": "))
	}
}

func (c *checker) log(ctx context.Context, p *corev1.Pod) ([]byte, error) {
	r, err := c.client.Log(p, &corev1.PodLogOptions{}).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // only read
	text, err := io.ReadAll(io.LimitReader(r, maxOutput+1))
	if err == nil && len(text) > maxOutput {
		err = errors.New("it is too long")
	}
	return text, err
}

// parse parses the output of `hairpin preflight`: findings, or its error.
func parse(text []byte, code int32) (found []preflight.Finding, err error) {
	if err = json.Unmarshal(text, &found); err == nil {
		return found, nil
	}
	if code == 0 || code == 1 {
		return nil, fmt.Errorf("its output is not a list of findings: %w", err)
	}
	return nil, errors.New(strings.TrimPrefix(strings.TrimSpace(string(text)), "hairpin: "))
}
