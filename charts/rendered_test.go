package charts_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"hairpin/ui"
)

func decode[T any](t *testing.T, all []*unstructured.Unstructured, kind, name string) *T {
	t.Helper()
	text, err := json.Marshal(find(t, all, kind, name))
	must(t, err)
	o := new(T)
	must(t, json.Unmarshal(text, o))
	return o
}

func container(t *testing.T, pod corev1.PodSpec, name string) *corev1.Container {
	t.Helper()
	i := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no container %s", name)
	}
	return &pod.Containers[i]
}

// TestRenderedForHandover checks what the handover between two pods on a node depends on.
func TestRenderedForHandover(t *testing.T) {
	all := render(t)
	node := decode[appsv1.DaemonSet](t, all, "DaemonSet", "hairpin-node")
	if r := node.Spec.UpdateStrategy.RollingUpdate; r.MaxSurge.IntValue() != 1 || r.MaxUnavailable.IntValue() != 0 {
		t.Errorf("update strategy is %v", r)
	}
	ovs := decode[appsv1.DaemonSet](t, all, "DaemonSet", "hairpin-ovs")
	if diff := cmp.Diff(node.Spec.UpdateStrategy, ovs.Spec.UpdateStrategy); diff != "" {
		t.Error(diff)
	}
	pod := node.Spec.Template.Spec
	controller := decode[appsv1.Deployment](t, all, "Deployment", "hairpin-controller").Spec.Template.Spec
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers, controller.Containers) {
		if len(c.Ports) > 0 {
			t.Errorf("container %s declares a port: two such pods are never on one node", c.Name)
		}
		if c.Image != "registry.example/net/hairpin:dev" || len(c.Resources.Requests) == 0 ||
			len(c.Resources.Limits) > 0 {
			t.Errorf("container %s: image %s, resources %v", c.Name, c.Image, c.Resources)
		}
	}
	if !pod.HostNetwork || !controller.HostNetwork {
		t.Error("not everything is in the host's network, which is there before the pods' network is")
	}
	for _, m := range container(t, pod, "agent").VolumeMounts {
		if m.MountPath == "/run/netns" &&
			(m.MountPropagation == nil || *m.MountPropagation != corev1.MountPropagationHostToContainer) {
			t.Error("the agent does not see the namespaces of later pods")
		}
	}
	at := map[string]string{}
	for _, v := range slices.Concat(pod.Volumes, ovs.Spec.Template.Spec.Volumes) {
		if v.HostPath != nil {
			at[v.Name] = v.HostPath.Path
		}
	}
	// sockets and locks have the same path on the host and in every container
	for _, c := range slices.Concat(pod.Containers, ovs.Spec.Template.Spec.Containers) {
		for _, m := range c.VolumeMounts {
			if host, ok := at[m.Name]; ok && len(m.MountPath) > 5 && m.MountPath[:5] == "/run/" && host != m.MountPath {
				t.Errorf("container %s: %s is %s on the host", c.Name, m.MountPath, host)
			}
		}
	}
}

// TestRenderedHealthTLS checks that the files for gRPC probes have the configured paths, in agent
// and controller.
func TestRenderedHealthTLS(t *testing.T) {
	for value, is := range map[string]func(corev1.VolumeSource) bool{
		"egressHealthTLS.secretName=health": func(v corev1.VolumeSource) bool {
			return v.Secret != nil &&
				v.Secret.SecretName == "health"
		},
		"egressHealthTLS.hostPath=/etc/kube/tls": func(v corev1.VolumeSource) bool {
			return v.HostPath != nil &&
				v.HostPath.Path == "/etc/kube/tls"
		},
	} {
		all := render(t, value, "config.ovnkubernetesfeature.egressip-node-healthcheck-ca=/elsewhere",
			"config.ovnkubernetesfeature.egressip-reachability-total-timeout=0.3")
		node := decode[appsv1.DaemonSet](t, all, "DaemonSet", "hairpin-node").Spec.Template.Spec
		controller := decode[appsv1.Deployment](t, all, "Deployment", "hairpin-controller").Spec.Template.Spec
		for name, pod := range map[string]corev1.PodSpec{"agent": node, "controller": controller} {
			c := container(t, pod, name)
			i := slices.IndexFunc(c.VolumeMounts,
				func(m corev1.VolumeMount) bool { return m.MountPath == "/etc/hairpin-tls" && m.ReadOnly })
			if i < 0 || !slices.ContainsFunc(pod.Volumes,
				func(v corev1.Volume) bool { return v.Name == c.VolumeMounts[i].Name && is(v.VolumeSource) }) {
				t.Errorf("%s: %s has mounts %v of volumes %v", value, name, c.VolumeMounts, pod.Volumes)
			}
		}
		conf := decode[corev1.ConfigMap](t, all, "ConfigMap", "hairpin").Data["hairpin.conf"]
		for _, want := range []string{"healthcheck-cert = /etc/hairpin-tls/tls.crt\n",
			"healthcheck-key = /etc/hairpin-tls/tls.key\n", "healthcheck-ca = /elsewhere\n", "total-timeout = 0.3\n"} {
			if !strings.Contains(conf, want) {
				t.Errorf("%s: no %q in %s", value, want, conf)
			}
		}
	}
}

// TestRenderedOpenvSwitch checks that the pods of Open vSwitch are replaced only if Open vSwitch
// changes.
func TestRenderedOpenvSwitch(t *testing.T) {
	pod := func(set ...string) corev1.PodTemplateSpec {
		return decode[appsv1.DaemonSet](t, render(t, set...), "DaemonSet", "hairpin-ovs").Spec.Template
	}
	before := pod()
	if want := "registry.example/net/hairpin-ovs:trixie-1"; before.Spec.Containers[0].Image != want {
		t.Errorf("its image is %s, not %s", before.Spec.Containers[0].Image, want)
	}
	same := pod("image.tag=v2", "config.logging.level=debug", "apiServer.host=10.0.0.1", "node.podAnnotations.a=b",
		"cleanup=true", "controller.replicas=1")
	if diff := cmp.Diff(before, same); diff != "" {
		t.Errorf("another version of the rest: %s", diff)
	}
	text, err := json.Marshal(before)
	must(t, err)
	if chart := decode[appsv1.DaemonSet](t, render(t), "DaemonSet",
		"hairpin-ovs").Labels["helm.sh/chart"]; chart == "" || strings.Contains(string(text), chart) {
		t.Errorf("%q is in the pods", chart)
	}
	for set, want := range map[string]string{
		"openvswitch.image.repository=r/x,openvswitch.image.tag=v3": "r/x:v3",
		"image.repository=r/y,openvswitch.image.tag=v4":             "r/y-ovs:v4",
	} {
		if got := pod(strings.Split(set, ",")...).Spec.Containers[0].Image; got != want {
			t.Errorf("%s: %s", set, got)
		}
	}
}

// TestRenderedConfiguration checks that the pods' checksum changes only with the configuration.
func TestRenderedConfiguration(t *testing.T) {
	sum := func(set ...string) [2]string {
		all := render(t, set...)
		return [2]string{
			decode[appsv1.DaemonSet](t, all, "DaemonSet", "hairpin-node").Spec.Template.Annotations["checksum/config"],
			decode[appsv1.Deployment](t, all, "Deployment",
				"hairpin-controller").Spec.Template.Annotations["checksum/config"],
		}
	}
	before := sum()
	if before[0] == "" || before != sum("controller.replicas=3") {
		t.Errorf("checksums are %v, and %v with another number of controllers", before, sum("controller.replicas=3"))
	}
	if after := sum("config.logging.level=debug"); after[0] == before[0] || after[1] == before[1] {
		t.Errorf("checksums are %v, and %v with another log level", before, after)
	}
}

// TestRenderedAddresses checks the address of the API server, and that of the kubelet's probes.
func TestRenderedAddresses(t *testing.T) {
	for _, c := range []struct {
		healthz, want string
	}{
		{`0.0.0.0:10256\,[::]:10256`, "127.0.0.1:10256"},
		{`[::]:1234`, "127.0.0.1:1234"},
		{`10.0.0.1:1234`, "10.0.0.1:1234"},
		{`[fd00::1]:1234`, "fd00::1:1234"},
		{``, ""},
	} {
		all := render(t, "config.default.healthz-bind-address="+c.healthz, "apiServer.host=fd00::10",
			"apiServer.port=443")
		pod := decode[appsv1.DaemonSet](t, all, "DaemonSet", "hairpin-node").Spec.Template.Spec
		agent := container(t, pod, "agent")
		for _, p := range []*corev1.Probe{agent.LivenessProbe, agent.ReadinessProbe} {
			got := ""
			if p != nil {
				got = fmt.Sprintf("%s:%s", p.HTTPGet.Host, p.HTTPGet.Port.String())
			}
			if got != c.want {
				t.Errorf("%s: the kubelet asks %q, not %q", c.healthz, got, c.want)
			}
		}
		for _, e := range agent.Env {
			if e.Name == "KUBERNETES_SERVICE_HOST" && e.Value != "fd00::10" || e.Name == "KUBERNETES_SERVICE_PORT" &&
				e.Value != "443" {
				t.Errorf("%s is %s", e.Name, e.Value)
			}
		}
	}
}

// TestRenderedUI checks that the pages are off by default, and that their account may change
// nothing.
func TestRenderedUI(t *testing.T) {
	for _, o := range render(t) {
		if strings.HasPrefix(o.GetName(), "hairpin-ui") {
			t.Errorf("%s %s is there by default", o.GetKind(), o.GetName())
		}
	}
	all := render(t, "ui.enabled=true", "ui.tls.secretName=pages")
	pod := decode[appsv1.Deployment](t, all, "Deployment", "hairpin-ui").Spec.Template.Spec
	c := container(t, pod, "ui")
	if pod.HostNetwork || pod.ServiceAccountName != "hairpin-ui" || len(c.Ports) != 1 ||
		!slices.Contains(c.Command, "--secure") ||
		!slices.Contains(c.Command, "--tls-cert=/etc/hairpin-ui-tls/tls.crt") {
		t.Errorf("%+v", pod)
	}
	for _, r := range decode[rbacv1.ClusterRole](t, all, "ClusterRole", "hairpin-ui").Rules {
		reviews := slices.Equal(r.Resources, []string{"tokenreviews"}) ||
			slices.Equal(r.Resources, []string{"subjectaccessreviews"})
		if !slices.Equal(r.Verbs, []string{"list"}) && !(reviews && slices.Equal(r.Verbs, []string{"create"})) ||
			slices.Contains(r.Resources, "secrets") {
			t.Errorf("%+v", r)
		}
	}
	viewer := decode[rbacv1.ClusterRole](t, all, "ClusterRole", "hairpin-ui-viewer").Rules
	if len(viewer) != 1 || !slices.Equal(viewer[0].NonResourceURLs, []string{ui.AccessPath}) {
		t.Errorf("the role of users: %+v", viewer)
	}
}
