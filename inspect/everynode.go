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

// everyNode sends requests to agents through the API server: permission to exec into their pods is
// permission to read their status.
type everyNode struct {
	Client  *kubeapi.Client
	config  *rest.Config
	options StatusOptions
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

// NewEveryNode connects to the Kubernetes API.
func NewEveryNode(o StatusOptions) (*everyNode, error) {
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
	return &everyNode{client, config, o}, nil
}

// agentPod is a node with the pod of its agent.
type agentPod struct {
	node string
	pod  *corev1.Pod // nil if there is none that runs
	why  string      // why pod is nil
}

// agents returns all nodes, by name, with the pods of their agents.
func (e *everyNode) agents(ctx context.Context) (list []agentPod, err error) {
	nodes, err := e.Client.Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	pods, err := e.Client.Pods(e.options.Namespace).List(ctx, metav1.ListOptions{LabelSelector: agentSelector})
	if err != nil {
		return nil, fmt.Errorf("list the agents' pods: %w", err)
	}
	for i := range nodes.Items {
		pod, why := choosePod(pods.Items, nodes.Items[i].Name)
		list = append(list, agentPod{nodes.Items[i].Name, pod, why + " in namespace " + e.options.Namespace})
	}
	slices.SortFunc(list, func(a, b agentPod) int { return strings.Compare(a.node, b.node) })
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

// status reads the status of all nodes.
func (e *everyNode) status(ctx context.Context) (*ClusterStatus, error) {
	limited, cancel := context.WithTimeout(ctx, e.options.Timeout)
	defer cancel()
	list, err := e.agents(limited)
	if err != nil {
		return nil, err
	}
	s := &ClusterStatus{Controller: e.leader(limited)}
	s.Nodes = askAll(list, func(a agentPod) NodeStatus {
		r, err := e.ask(ctx, a, true)
		if err == nil && r.Node != a.node {
			err = errWrongNode(r.Node)
		}
		if err != nil {
			return NodeStatus{Node: a.node, Error: err.Error()}
		}
		return NodeStatus{Node: a.node, Report: r}
	})
	if !e.options.Brief {
		e.egress(ctx, s, list)
	}
	return s, nil
}

// errWrongNode returns the error if the agent of another node answers.
func errWrongNode(node string) error { return fmt.Errorf("the answer is of node %s", node) }

// egress takes the egress addresses from the full report of one node that has answered. Full
// reports of 1000 nodes with 1000 addresses would be 256 MB through the API server. All tries share
// the timeout of one answer.
func (e *everyNode) egress(ctx context.Context, s *ClusterStatus, list []agentPod) {
	ctx, cancel := context.WithTimeout(ctx, e.options.Timeout)
	defer cancel()
	for i, n := range s.Nodes {
		if n.Report == nil {
			continue
		}
		if whole, err := e.ask(ctx, list[i], false); err == nil {
			n.Report.Egress = whole.Egress
			return
		}
	}
}

// choosePod returns the pod of a node's agent. During an update there are two, which reach the same
// agent. The container of the newer one may not run yet.
func choosePod(pods []corev1.Pod, node string) (pod *corev1.Pod, why string) {
	why = "no agent's pod"
	for i := range pods {
		p := &pods[i]
		if p.Spec.NodeName != node {
			continue
		}
		running := slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return c.Name == agentContainer && c.State.Running != nil
		})
		switch {
		case running && (pod == nil || pod.CreationTimestamp.Before(&p.CreationTimestamp)):
			pod = p
		case !running:
			why = fmt.Sprintf("pod %s: container %s does not run", p.Name, agentContainer)
		}
	}
	return pod, why
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

// ask runs `hairpin status` in an agent's container. Agents before v0.2.0 have no brief report.
func (e *everyNode) ask(ctx context.Context, a agentPod, brief bool) (*report.Report, error) {
	command := []string{"hairpin", "status", "--output=json"}
	if brief {
		command = append(command, "--brief")
	}
	out, err := e.execAgent(ctx, a, maxReport, command...)
	if brief && err != nil && strings.Contains(err.Error(), "unknown flag: --brief") {
		return e.ask(ctx, a, false)
	}
	if r, bad := report.Parse(out); bad == nil {
		return r, nil // with an error, if there is a problem
	}
	if err == nil {
		err = errors.New("no report in the answer")
	}
	return nil, err
}

// execAgent is exec for a node that may have no agent.
func (e *everyNode) execAgent(ctx context.Context, a agentPod, limit int, command ...string) ([]byte, error) {
	if a.pod == nil {
		return nil, errors.New(a.why)
	}
	return e.exec(ctx, a.pod, limit, command...)
}

// exec runs a command in an agent's container and returns its output, also after a failure. It
// rejects more than limit bytes.
func (e *everyNode) exec(ctx context.Context, pod *corev1.Pod, limit int, command ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, e.options.Timeout)
	defer cancel()
	q := e.Client.Exec(pod, &corev1.PodExecOptions{Container: agentContainer, Command: command, Stdout: true,
		Stderr: true})
	ws, err := remotecommand.NewWebSocketExecutor(e.config, "GET", q.URL().String())
	if err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	spdy, err := remotecommand.NewSPDYExecutor(e.config, "POST", q.URL())
	if err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	// An API server, or a proxy before it, may support only the older protocol.
	client, err := remotecommand.NewFallbackExecutor(ws, spdy, func(err error) bool {
		var ended exec.CodeExitError
		return ctx.Err() == nil && !errors.As(err, &ended)
	})
	if err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	out, errs := limitedBuffer{limit: limit}, limitedBuffer{limit: maxStderr}
	err = client.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &errs})
	switch said := strings.TrimSpace(report.Plain(string(errs.text), "\n")); {
	case err == nil:
		return out.text, nil
	case errors.Is(err, errTooLong):
		return nil, errTooLong
	case said != "":
		return out.text, errors.New(strings.TrimPrefix(said, "hairpin: "))
	case ctx.Err() != nil:
		return out.text, fmt.Errorf("no answer within %s", e.options.Timeout)
	}
	return out.text, fmt.Errorf("exec: %w", err)
}

// leader reads the controllers' Lease.
func (e *everyNode) leader(ctx context.Context) *LeaderStatus {
	l, err := e.Client.Leases(kube.LeaseNamespace).Get(ctx, kube.LeaseName)
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
