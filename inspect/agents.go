package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"hairpin/kube"
	"hairpin/kubeapi"
	"hairpin/report"
)

// The selector and container of the agents' pods in the chart.
const (
	agentSelector  = "app.kubernetes.io/name=hairpin,app.kubernetes.io/component=node"
	agentContainer = "agent"
	maxAtOnce      = 50 // nodes that are queried at the same time
)

// Limits of the output of a command on a node, in bytes.
const (
	maxReport  = 8 << 20
	maxArchive = 64 << 20
	maxStderr  = 64 << 10 // on its standard error
)

// DefaultNamespace is the chart's default namespace.
const DefaultNamespace = "hairpin"

// ClusterOptions select a cluster and its agents.
type ClusterOptions struct {
	Kubeconfig string        // empty = the environment's, as kubectl does
	Context    string        // of the kubeconfig; empty = its current one
	Namespace  string        // of the agents' pods
	Timeout    time.Duration // of each request
}

// Agents sends requests to all agents of a cluster through the API server: permission to exec into
// their pods is permission to read their status.
type Agents struct {
	Client  *kubeapi.Client
	config  *rest.Config
	options ClusterOptions
}

// Contexts returns the names of the contexts in the kubeconfig, or nil if there is none.
func Contexts(kubeconfig string) []string {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := rules.Load()
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(config.Contexts))
}

// Connect connects to the Kubernetes API. It sends no request.
func Connect(o ClusterOptions) (*Agents, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: o.Context}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil,
			errors.New("connect to the Kubernetes API: there is no kubeconfig (--kubeconfig, $KUBECONFIG or " +
				"~/.kube/config), and this is no pod")
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API: %w", err)
	}
	config.UserAgent, config.QPS, config.Burst = "hairpin-status", -1, 0 // no rate limit: a user waits
	config.WarningHandler = rest.NoWarnings{}
	client, err := kubeapi.New(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API: %w", err)
	}
	return &Agents{client, config, o}, nil
}

// agentPod is a node with the pod of its agent.
type agentPod struct {
	node    string
	pod     *corev1.Pod // nil if there is none that runs
	missing error       // why pod is nil
}

// pods returns all nodes, by name, with the pods of their agents.
func (a *Agents) pods(ctx context.Context) (list []agentPod, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.options.Timeout)
	defer cancel()
	nodes, err := a.Client.Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	pods, err := a.Client.Pods(a.options.Namespace).List(ctx, metav1.ListOptions{LabelSelector: agentSelector})
	if err != nil {
		return nil, fmt.Errorf("list the agents' pods: %w", err)
	}
	for i := range nodes.Items {
		list = append(list, a.choosePod(pods.Items, nodes.Items[i].Name))
	}
	slices.SortFunc(list, func(x, y agentPod) int { return strings.Compare(x.node, y.node) })
	return list, nil
}

// askAll returns the results of ask for all agents. It asks up to maxAtOnce at the same time.
func askAll[T any](list []agentPod, ask func(agentPod) T) []T {
	out := make([]T, len(list))
	var g errgroup.Group
	g.SetLimit(maxAtOnce)
	for i, a := range list {
		g.Go(func() error {
			out[i] = ask(a)
			return nil
		})
	}
	_ = g.Wait() // out has the errors
	return out
}

// status reads the status of all nodes: if brief, without the cluster's egress addresses.
func (a *Agents) status(ctx context.Context, brief bool) (*ClusterStatus, error) {
	list, err := a.pods(ctx)
	if err != nil {
		return nil, err
	}
	s := &ClusterStatus{Controller: a.leader(ctx)}
	s.Nodes = askAll(list, func(n agentPod) NodeStatus {
		r, err := a.readReport(ctx, n, true)
		if err == nil && r.Node != n.node {
			err = errWrongNode(r.Node)
		}
		if err != nil {
			return NodeStatus{Node: n.node, Error: err.Error()}
		}
		return NodeStatus{Node: n.node, Report: r}
	})
	if !brief {
		a.addEgress(ctx, s, list)
	}
	return s, nil
}

// errWrongNode returns the error if the agent of another node answers.
func errWrongNode(node string) error { return fmt.Errorf("the answer is of node %s", node) }

// addEgress adds the egress addresses to the report of the first node that answers again, now with
// its full report. Full reports of 1000 nodes with 1000 addresses would be 256 MB through the API
// server. All attempts together have the time of one request.
func (a *Agents) addEgress(ctx context.Context, s *ClusterStatus, list []agentPod) {
	ctx, cancel := context.WithTimeout(ctx, a.options.Timeout)
	defer cancel()
	for i, n := range s.Nodes {
		if n.Report == nil {
			continue
		}
		if whole, err := a.readReport(ctx, list[i], false); err == nil {
			n.Report.Egress = whole.Egress
			return
		}
	}
}

// choosePod chooses the pod of a node's agent. During an update there are two, which reach the same
// agent. The container of the newer one may not run yet.
func (a *Agents) choosePod(pods []corev1.Pod, node string) agentPod {
	chosen, why := (*corev1.Pod)(nil), "no agent's pod"
	for i := range pods {
		p := &pods[i]
		if p.Spec.NodeName != node {
			continue
		}
		running := slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return c.Name == agentContainer && c.State.Running != nil
		})
		switch {
		case running && (chosen == nil || chosen.CreationTimestamp.Before(&p.CreationTimestamp)):
			chosen = p
		case !running:
			why = fmt.Sprintf("pod %s: container %s does not run", p.Name, agentContainer)
		}
	}
	if chosen != nil {
		return agentPod{node: node, pod: chosen}
	}
	return agentPod{node: node, missing: errors.New(why + " in namespace " + a.options.Namespace)}
}

// AgentImage returns the image of the agents in a namespace, which their nodes have.
func AgentImage(ctx context.Context, client *kubeapi.Client, namespace string) (string, error) {
	pods, err := client.Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: agentSelector})
	if err != nil {
		return "", fmt.Errorf("list the agents' pods: %w", err)
	}
	for _, p := range pods.Items {
		for _, k := range p.Spec.Containers {
			if k.Name == agentContainer {
				return k.Image, nil
			}
		}
	}
	return "", fmt.Errorf("no agent's pod in namespace %s", namespace)
}

// readReport runs `hairpin status` in an agent's container. Agents before v0.2.0 have no brief
// report. The command fails if there is a problem, and prints the report.
func (a *Agents) readReport(ctx context.Context, n agentPod, brief bool) (*report.Report, error) {
	command := []string{"hairpin", "status", "--output=json"}
	if brief {
		command = append(command, "--brief")
	}
	out, err := a.execAgent(ctx, n, maxReport, command...)
	if brief && err != nil && strings.Contains(err.Error(), "unknown flag: --brief") {
		return a.readReport(ctx, n, false)
	}
	r, parseErr := report.Parse(out)
	switch {
	case parseErr == nil:
		return r, nil
	case err == nil:
		return nil, errors.New("no report in the answer")
	}
	return nil, err
}

// execAgent is exec for a node that may have no agent.
func (a *Agents) execAgent(ctx context.Context, n agentPod, limit int, command ...string) ([]byte, error) {
	if n.pod == nil {
		return nil, n.missing
	}
	return a.exec(ctx, n.pod, limit, command...)
}

// exec runs a command in an agent's container and returns its output, also after a failure. It
// rejects more than limit bytes.
func (a *Agents) exec(ctx context.Context, pod *corev1.Pod, limit int, command ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, a.options.Timeout)
	defer cancel()
	q := a.Client.Exec(pod, &corev1.PodExecOptions{Container: agentContainer, Command: command, Stdout: true,
		Stderr: true})
	ws, err := remotecommand.NewWebSocketExecutor(a.config, "GET", q.URL().String())
	if err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	spdy, err := remotecommand.NewSPDYExecutor(a.config, "POST", q.URL())
	if err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	out, stderr := limitedBuffer{limit: limit}, limitedBuffer{limit: maxStderr}
	// An API server, or a proxy before it, may support only the older protocol.
	client, err := remotecommand.NewFallbackExecutor(ws, spdy, func(err error) bool {
		return ctx.Err() == nil && !started(err, &out, &stderr)
	})
	if err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	err = client.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &stderr})
	switch message := strings.TrimSpace(report.Plain(string(stderr.text), "\n")); {
	case err == nil:
		return out.text, nil
	case errors.Is(err, errTooLong):
		return nil, errTooLong
	case message != "":
		return out.text, errors.New(strings.TrimPrefix(message, "hairpin: "))
	case ctx.Err() != nil:
		return out.text, fmt.Errorf("no answer within %s", a.options.Timeout)
	}
	return out.text, fmt.Errorf("exec: %w", err)
}

// started reports whether a command that failed with err has run: it ended, or had output. Such a
// command must not run again: its output would follow that of the first, and a packet would be sent
// twice.
func started(err error, out, stderr *limitedBuffer) bool {
	var ended exec.CodeExitError
	return errors.As(err, &ended) || errors.Is(err, errTooLong) || len(out.text)+len(stderr.text) > 0
}

// leader reads the controllers' Lease.
func (a *Agents) leader(ctx context.Context) *LeaderStatus {
	ctx, cancel := context.WithTimeout(ctx, a.options.Timeout)
	defer cancel()
	l, err := a.Client.Leases(kube.LeaseNamespace).Get(ctx, kube.LeaseName)
	switch {
	case apierrors.IsNotFound(err):
		return &LeaderStatus{Error: "no controller ever ran"}
	case err != nil:
		return &LeaderStatus{Error: err.Error()}
	}
	var s LeaderStatus
	if l.Spec.HolderIdentity != nil {
		s.Holder, _, _ = strings.Cut(*l.Spec.HolderIdentity, "_")
	}
	if l.Spec.AcquireTime != nil && s.Holder != "" {
		s.Since = l.Spec.AcquireTime.Time
	}
	if l.Spec.RenewTime != nil {
		s.Renewed = l.Spec.RenewTime.Time
	}
	switch age := time.Since(s.Renewed); {
	case s.Holder == "":
		s.Error = "no process holds the Lease"
	case age > 2*kube.LeaseDuration: // the clocks of machines may differ
		s.Error = fmt.Sprintf("the Lease was renewed %s ago", age.Round(time.Second))
	}
	return &s
}

// limitedBuffer is a writer that keeps up to limit bytes and rejects more.
type limitedBuffer struct {
	limit int
	text  []byte
}

var errTooLong = errors.New("the answer is too long")

func (l *limitedBuffer) Write(b []byte) (int, error) {
	if len(l.text)+len(b) > l.limit {
		return 0, errTooLong
	}
	l.text = append(l.text, b...)
	return len(b), nil
}
