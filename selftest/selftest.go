// Package selftest tests a cluster's network: `hairpin test`. It makes pods and Services in a
// namespace of its own, sends packets on every path between them, explains those that do not
// arrive, and removes what it made.
//
// The pods run package podside from Hairpin's own image and report by their logs. So the test needs
// no right to run commands in pods, no other image, and no path from the API server to the pods.
package selftest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/config"
	"hairpin/inspect"
	"hairpin/kubeapi"
	"hairpin/report"
	"hairpin/ui"
)

const (
	// DefaultNamespace is the namespace that a test makes and removes.
	DefaultNamespace = "hairpin-test"

	pollTime    = 500 * time.Millisecond
	patience    = 15 * time.Second // how long a pod repeats a check that fails
	cleanupTime = time.Minute      // for the removal of the namespace, also after an interrupt
	maxLog      = 4 << 20          // bytes of a pod's log
)

// forceAfter is how long kubelets have to end the pods. The pods of a node without a kubelet are
// then removed from the API.
var forceAfter = 10 * time.Second

// startTime is how long a pod has until it runs. Tests shorten both times.
var startTime = 3 * time.Minute

// Options select what is tested, and how.
type Options struct {
	Context   string   // of the kubeconfig; empty = its current one
	Agents    string   // namespace of the agents' pods
	Namespace string   // of the test; it must not exist
	Image     string   // with hairpin in it; empty = that of the agents' pods
	Nodes     []string // by name; none = the first that are ready
	Selector  string   // of the nodes' labels; empty = all
	MaxNodes  int      // without Nodes; 0 = all
	HostPort  uint16   // first of three TCP and UDP ports of the nodes for servers there
	Outside   []string // ADDRESS:PORT of TCP servers outside the cluster
	FromHere  bool     // this machine reaches the nodes: it is a client outside, too
	Skip      string   // regular expression: names of checks to leave out
	Timeout   time.Duration
	Measure   time.Duration // of the throughput of each path; 0 = no measurement
	Explain   int           // failures to explain
	JUnit     string        // file for the results; empty = none
	Keep      bool          // leave the namespace
	Verbose   bool          // print the checks that passed, too
}

// test is a running test.
type test struct {
	Options
	api      *kubeapi.Client
	w, errw  io.Writer
	explain  func(ctx context.Context, w io.Writer, o ui.ExplainOptions) error
	begin    time.Time
	skip     *regexp.Regexp
	nodes    []corev1.Node
	pods     map[string]*corev1.Pod     // servers that run, by name, with their addresses
	down     map[string]bool            // the pods that do not run
	runs     group                      // a check for each pod: that it runs
	services map[string]*corev1.Service // by name
}

// Run tests the cluster and prints the results. It returns report.ErrProblems if a check failed.
func Run(ctx context.Context, w, errw io.Writer, c config.Config, o Options) error {
	api, err := inspect.Connect(inspect.ClusterOptions{Kubeconfig: c.Process.Kubeconfig, Context: o.Context})
	if err != nil {
		return err
	}
	return run(ctx, w, errw, api.Client, c, o)
}

func run(ctx context.Context, w, errw io.Writer, api *kubeapi.Client, c config.Config, o Options) error {
	t := &test{Options: o, api: api, w: w, errw: errw, begin: time.Now(), pods: map[string]*corev1.Pod{},
		down: map[string]bool{}, runs: group{title: "pods that run"}, services: map[string]*corev1.Service{}}
	t.explain = func(ctx context.Context, w io.Writer, e ui.ExplainOptions) error {
		e.Live, e.EveryNode, e.Output, e.Timeout = true, true, "text", 10*time.Second
		e.Context, e.Namespace = o.Context, o.Agents
		return ui.Explain(ctx, w, io.Discard, e, c)
	}
	for _, to := range o.Outside {
		if _, err := netip.ParseAddrPort(to); err != nil {
			return fmt.Errorf("--outside: %w", err)
		}
	}
	var err error
	if t.skip, err = regexp.Compile(cmp.Or(o.Skip, "$^")); err != nil {
		return fmt.Errorf("--skip: %w", err)
	}
	limited, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("not done within %s (--timeout)", o.Timeout))
	defer cancel()
	err = t.run(limited)
	if err != nil && !errors.Is(err, report.ErrProblems) {
		if limited.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(limited), err)
		}
		return fmt.Errorf("test: %w", err)
	}
	return err
}

func (t *test) run(ctx context.Context) (err error) {
	if t.nodes, err = t.chooseNodes(ctx); err != nil {
		return err
	}
	if t.Image == "" {
		if t.Image, err = inspect.AgentImage(ctx, t.api, t.Agents); err != nil {
			return fmt.Errorf("%w: set --agent-namespace or --image", err)
		}
	}
	fmt.Fprintf(t.errw, "namespace %s, nodes %s, image %s\n", t.Namespace, names(t.nodes), t.Image)
	if err := t.makeNamespace(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.cleanUp(ctx)) }()
	if err := t.makeServers(ctx); err != nil {
		return err
	}
	groups := t.groups()
	var list []*check
	for _, g := range groups {
		list = append(list, g.checks...)
	}
	fmt.Fprintf(t.errw, "%s of paths\n", report.Counted(len(list), "check"))
	if err := t.carryOut(ctx, "client", list); err != nil {
		return err
	}
	if err := t.recheck(ctx); err != nil {
		return err
	}
	t.explainFailures(ctx, t.tested("client", slices.Clone(list)))
	tested := []*group{&t.runs}
	for _, g := range groups {
		if g.checks = t.tested("client", g.checks); len(g.checks) > 0 {
			tested = append(tested, g)
		}
	}
	paths := t.paths()
	if t.Measure > 0 {
		if err := t.carryOut(ctx, "meter", paths); err != nil {
			return err
		}
		if err := t.recheck(ctx); err != nil {
			return err
		}
		paths = t.tested("meter", paths)
	}
	return t.show(tested, paths)
}

// tested returns the checks with a client and a server that run. It changes list.
func (t *test) tested(role string, list []*check) []*check {
	return slices.DeleteFunc(list, func(c *check) bool {
		return t.down[c.pod] || !c.client.here && t.down[clientName(role, c.client.node, c.client.host)]
	})
}

// chooseNodes returns the nodes to test: those that are named, or the first that are ready.
func (t *test) chooseNodes(ctx context.Context) ([]corev1.Node, error) {
	all, err := t.api.Nodes().List(ctx, metav1.ListOptions{LabelSelector: t.Selector})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var list []corev1.Node
	for _, n := range all.Items {
		os := n.Labels[corev1.LabelOSStable]
		if len(t.Nodes) > 0 && slices.Contains(t.Nodes, n.Name) ||
			len(t.Nodes) == 0 && ready(&n) && (os == "" || os == string(corev1.Linux)) {
			list = append(list, n)
		}
	}
	for _, name := range t.Nodes {
		if !slices.ContainsFunc(list, func(n corev1.Node) bool { return n.Name == name }) {
			return nil, fmt.Errorf("--nodes: there is no node %q", name)
		}
	}
	if len(list) == 0 {
		return nil, errors.New("no node with Linux is Ready")
	}
	slices.SortFunc(list, func(a, b corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	if len(t.Nodes) == 0 && t.MaxNodes > 0 {
		list = list[:min(len(list), t.MaxNodes)]
	}
	return list, nil
}

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (t *test) makeNamespace(ctx context.Context) error {
	_, err := t.api.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: t.Namespace,
		// Pods in the network of their node need it.
		Labels: map[string]string{nameLabel: testName, "pod-security.kubernetes.io/enforce": "privileged"},
	}})
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("namespace %s exists: another test runs, or one was killed; delete the namespace, or choose "+
			"another --namespace", t.Namespace)
	}
	if err != nil {
		return fmt.Errorf("create namespace %s: %w", t.Namespace, err)
	}
	return nil
}

// cleanUp deletes the namespace and waits until it is gone, also after an interrupt.
func (t *test) cleanUp(ctx context.Context) error {
	if t.Keep {
		fmt.Fprintf(t.errw, "namespace %s stays: kubectl delete namespace %[1]s\n", t.Namespace)
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	for begin := time.Now(); ; {
		if time.Since(begin) > forceAfter {
			t.force(ctx)
		}
		err := t.api.Namespaces().Delete(ctx, t.Namespace, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil || apierrors.IsConflict(err) { // it is being deleted
			err = errors.New("it is still being deleted")
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("delete namespace %s: not within %s: %w", t.Namespace, cleanupTime, err)
		case <-time.After(pollTime):
		}
	}
}

// force removes the pods that are left.
func (t *test) force(ctx context.Context) {
	pods, err := t.api.Pods(t.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return // the caller tries again
	}
	for _, p := range pods.Items {
		at := int64(0)
		_ = t.api.Pods(t.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &at}) // again later
	}
}
