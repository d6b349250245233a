package selftest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hairpin/report"
	"hairpin/selftest/podside"
)

// Labels and values of the objects.
const (
	nameLabel = "app.kubernetes.io/name"
	testName  = "hairpin-test"
	podLabel  = "hairpin-test-pod"
	roleLabel = "hairpin-test-role"
)

// Ports of the servers in pods. Those in the network of a node have Options.HostPort in place of
// answerPort, and the next two.
const (
	answerPort  = 8080
	blockedPort = 8081 // of guarded pods
	sinkPort    = 8082

	servicePort        = 80
	serviceBlockedPort = 81
	serviceSinkPort    = 82
)

// Names of objects, by the number of their node.
func serverName(i int) string     { return fmt.Sprint("server-", i) }
func guardedName(i int) string    { return fmt.Sprint("guarded-", i) }
func hostServerName(i int) string { return fmt.Sprint("host-", i) }
func nodePortName(i int) string   { return fmt.Sprint("nodeport-", i) }
func selfName(i int) string       { return fmt.Sprint("self-", i) }

// serverNames returns the names of the pods of a node with only servers.
func serverNames(i int) []string { return []string{serverName(i), guardedName(i), hostServerName(i)} }

// makeServers creates the policy first, then Services and servers, and waits until the servers
// run.
func (t *test) makeServers(ctx context.Context) error {
	if _, err := t.api.NetworkPolicies(t.Namespace).Create(ctx, t.policy()); err != nil {
		return fmt.Errorf("create NetworkPolicy: %w", err)
	}
	host := int32(t.HostPort)
	for i := range t.nodes {
		for _, s := range []*corev1.Service{
			t.service(serverName(i), serverName(i), corev1.ServiceTypeClusterIP, answerPort),
			t.service(nodePortName(i), serverName(i), corev1.ServiceTypeNodePort, answerPort),
			t.service(guardedName(i), guardedName(i), corev1.ServiceTypeClusterIP, answerPort),
			t.service(hostServerName(i), hostServerName(i), corev1.ServiceTypeClusterIP, host),
			t.service(selfName(i), clientName("client", i, false), corev1.ServiceTypeClusterIP, answerPort),
		} {
			made, err := t.api.Services(t.Namespace).Create(ctx, s)
			if err != nil {
				return fmt.Errorf("create Service %s: %w", s.Name, err)
			}
			t.services[s.Name] = made
		}
	}
	for i := range t.nodes {
		for _, p := range []*corev1.Pod{
			t.pod(serverName(i), "server", i, false, podside.Work{Serve: []uint16{answerPort}, Sink: sinkPort}),
			t.pod(guardedName(i), "guarded", i, false, podside.Work{Serve: []uint16{answerPort, blockedPort}}),
			t.pod(hostServerName(i), "host", i, true, podside.Work{Serve: []uint16{t.HostPort}, Sink: t.HostPort + 2}),
		} {
			if err := t.create(ctx, p); err != nil {
				return err
			}
		}
	}
	until := time.Now().Add(startTime)
	for i := range t.nodes {
		for _, name := range serverNames(i) {
			p, err := t.running(ctx, name, until)
			if err == nil {
				t.pods[name] = p
			}
			if err := t.recordRun(ctx, name, i, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// policy accepts clients in pods at one port of guarded pods, and nothing else.
func (t *test) policy() *networkingv1.NetworkPolicy {
	port := intstr.FromInt32(answerPort)
	ports := make([]networkingv1.NetworkPolicyPort, 2)
	for i, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		ports[i] = networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: &port}
	}
	return &networkingv1.NetworkPolicy{
		ObjectMeta: t.meta("guarded", nil),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{roleLabel: "guarded"}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{
					MatchLabels: map[string]string{roleLabel: "client"}}}},
				Ports: ports,
			}},
		},
	}
}

func (t *test) meta(name string, labels map[string]string) metav1.ObjectMeta {
	all := map[string]string{nameLabel: testName}
	for k, v := range labels {
		all[k] = v
	}
	return metav1.ObjectMeta{Name: name, Namespace: t.Namespace, Labels: all}
}

// service returns a Service of both families, if the cluster has them, for one pod. Its ports lead
// to port, and to the next two.
func (t *test) service(name, pod string, kind corev1.ServiceType, port int32) *corev1.Service {
	both := corev1.IPFamilyPolicyPreferDualStack
	entry := func(name string, protocol corev1.Protocol, number, target int32) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: protocol, Port: number, TargetPort: intstr.FromInt32(target)}
	}
	return &corev1.Service{
		ObjectMeta: t.meta(name, nil),
		Spec: corev1.ServiceSpec{
			Type: kind, IPFamilyPolicy: &both, Selector: map[string]string{podLabel: pod},
			Ports: []corev1.ServicePort{
				entry("tcp", corev1.ProtocolTCP, servicePort, port),
				entry("udp", corev1.ProtocolUDP, servicePort, port),
				entry("blocked", corev1.ProtocolTCP, serviceBlockedPort, port+1),
				entry("sink", corev1.ProtocolTCP, serviceSinkPort, port+2),
			},
		},
	}
}

// pod returns a pod on a node that does some work, without any privilege, and without the
// scheduler: it runs on nodes with taints, too.
func (t *test) pod(name, role string, node int, host bool, work podside.Work) *corev1.Pod {
	work.Name, work.Patience = name, patience
	text, err := json.Marshal(work)
	if err != nil {
		panic(err) // it has only values that JSON has
	}
	yes, no, nobody, grace := true, false, int64(65534), int64(1)
	life := int64((t.Timeout + cleanupTime).Seconds()) + 1
	dns := corev1.DNSClusterFirst
	if host {
		dns = corev1.DNSClusterFirstWithHostNet
	}
	return &corev1.Pod{
		ObjectMeta: t.meta(name, map[string]string{podLabel: name, roleLabel: role}),
		Spec: corev1.PodSpec{
			NodeName: t.nodes[node].Name, HostNetwork: host, DNSPolicy: dns,
			RestartPolicy: corev1.RestartPolicyNever, ActiveDeadlineSeconds: &life,
			TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken:  &no, EnableServiceLinks: &no,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "test", Image: t.Image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"hairpin", "test-pod"},
				Env:     []corev1.EnvVar{{Name: podside.Variable, Value: string(text)}},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("32Mi")}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsNonRoot: &yes, RunAsUser: &nobody,
					RunAsGroup: &nobody, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
			}},
		},
	}
}

// create creates a pod. A new namespace has no service account for the first moments.
func (t *test) create(ctx context.Context, p *corev1.Pod) error {
	for {
		_, err := t.api.Pods(t.Namespace).Create(ctx, p)
		switch {
		case err == nil:
			return nil
		case !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "serviceaccount"):
			return fmt.Errorf("create pod %s: %w", p.Name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("create pod %s: %w", p.Name, err)
		case <-time.After(pollTime / 5):
		}
	}
}

// running waits until a pod runs and has addresses.
func (t *test) running(ctx context.Context, name string, until time.Time) (*corev1.Pod, error) {
	var last error
	for {
		p, err := t.get(ctx, name)
		if err == nil || isFinal(err) {
			return p, err
		}
		if ctx.Err() == nil {
			last = err
		}
		if ctx.Err() != nil || time.Now().After(until) {
			return nil, fmt.Errorf("%w%s", cmp.Or(last, err), t.warning(ctx, name))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollTime):
		}
	}
}

// get returns a pod, or an error if the pod does not run.
func (t *test) get(ctx context.Context, name string) (*corev1.Pod, error) {
	p, err := t.api.Pods(t.Namespace).Get(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil, &ended{fmt.Errorf("another program deleted it: %w", err)}
	}
	if err == nil {
		err = t.notRunning(ctx, p)
	}
	return p, err
}

// recheck records the servers that ended after they had run: what failed, or was dropped, on the
// path to them is no property of the network.
func (t *test) recheck(ctx context.Context) error {
	for i := range t.nodes {
		for _, name := range serverNames(i) {
			_, err := t.get(ctx, name)
			if t.down[name] || !isFinal(err) {
				continue
			}
			if err := t.recordRun(ctx, name, i, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// recordRun records that a pod runs, or why it does not: then checks that need it are left out. It
// returns an error only after an interrupt.
func (t *test) recordRun(ctx context.Context, pod string, node int, why error) error {
	name := fmt.Sprintf("pod %s on node %s", pod, t.nodes[node].Name)
	i := slices.IndexFunc(t.runs.checks, func(c *check) bool { return c.name == name })
	if i < 0 {
		i = len(t.runs.checks)
		t.runs.checks = append(t.runs.checks, &check{name: name})
	}
	if why != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%s does not run: %w", name, why)
		}
		t.down[pod] = true
		t.runs.checks[i].result.Error = report.Plain(why.Error(), "")
		fmt.Fprintf(t.errw, "%s does not run: no path from or to it is tested\n", name)
	}
	return nil
}

// warning returns the newest warning about a pod, such as an error of the CNI plugin.
func (t *test) warning(ctx context.Context, pod string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pollTime)
	defer cancel()
	list, err := t.api.Events(t.Namespace).List(ctx,
		metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod + ",type=" + corev1.EventTypeWarning})
	if err != nil || len(list.Items) == 0 {
		return ""
	}
	newest := slices.MaxFunc(list.Items, func(a, b corev1.Event) int {
		return a.LastTimestamp.Compare(b.LastTimestamp.Time)
	})
	return ": " + report.Plain(newest.Message, "")
}

// ended is an error that waiting does not change.
type ended struct{ error }

func isFinal(err error) bool { return errors.As(err, new(*ended)) }

// notRunning returns why a pod does not run, or nil.
func (t *test) notRunning(ctx context.Context, p *corev1.Pod) error {
	var state corev1.ContainerState
	if list := p.Status.ContainerStatuses; len(list) == 1 {
		state = list[0].State
	}
	switch x, w := state.Terminated, state.Waiting; {
	case x != nil:
		text := x.Message
		if log, err := t.log(ctx, p.Name); err == nil { // the exit code says something, too
			text += lastLine(log)
		}
		return &ended{fmt.Errorf("ended with code %d: %s", x.ExitCode, text)}
	case p.Status.Phase == corev1.PodFailed:
		return &ended{fmt.Errorf("its kubelet rejects it: %s: %s", p.Status.Reason, p.Status.Message)}
	case w != nil:
		return fmt.Errorf("%s", strings.TrimSuffix(w.Reason+": "+w.Message, ": "))
	case p.Status.Phase != corev1.PodRunning:
		return fmt.Errorf("its phase is %s%s", p.Status.Phase, unmet(p))
	case len(p.Status.PodIPs) == 0:
		return errors.New("it has no address")
	}
	return nil
}

// unmet returns the conditions of a pod that are not met, with their reasons.
func unmet(p *corev1.Pod) (text string) {
	for _, c := range p.Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Message != "" {
			text += fmt.Sprintf(", %s: %s", c.Type, c.Message)
		}
	}
	return text
}

func lastLine(text []byte) string {
	list := strings.Split(strings.TrimSpace(string(text)), "\n")
	return list[len(list)-1]
}

// log returns the log of a pod's container.
func (t *test) log(ctx context.Context, pod string) ([]byte, error) {
	limit := int64(maxLog)
	return t.api.Log(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: pod}},
		&corev1.PodLogOptions{LimitBytes: &limit}).DoRaw(ctx)
}
