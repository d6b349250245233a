package charts_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"hairpin/lab/chart"
)

// TestChartFile checks what repositories of charts show.
func TestChartFile(t *testing.T) {
	var file struct {
		Name, Description, Icon, KubeVersion string
		Keywords                             []string
		Annotations                          map[string]string
	}
	must(t, yaml.Unmarshal(read(t, "hairpin/Chart.yaml"), &file))
	if !strings.HasPrefix(file.Icon, "data:image/svg+xml;base64,") || file.KubeVersion == "" ||
		len(file.Keywords) == 0 {
		t.Errorf("%+v", file)
	}
	var crds []struct{ Kind, Name, Version string }
	must(t, yaml.Unmarshal([]byte(file.Annotations["artifacthub.io/crds"]), &crds))
	out, problem, err := helmDoes(t, "show", "crds", "hairpin")
	if err != nil {
		t.Fatal(err, problem)
	}
	objects, err := chart.Objects(out)
	must(t, err)
	var has, shown []string
	for _, o := range objects {
		has = append(has, o.GetName())
	}
	for _, c := range crds {
		shown = append(shown, c.Name)
	}
	slices.Sort(has)
	slices.Sort(shown)
	if !slices.Equal(has, shown) {
		t.Errorf("the annotation artifacthub.io/crds has %v, the chart %v", shown, has)
	}
}

// labelValue matches a valid value of a label.
var labelValue = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

// TestLabels checks the labels that tools expect of every object, also with a long tag.
func TestLabels(t *testing.T) {
	for _, set := range [][]string{nil, {"image.tag=" + strings.Repeat("v1.2-", 20)}, {"resourceQuota.enabled=true",
		"rbac.aggregateEdit=true", "namespace.create=true", "ui.enabled=true"}} {
		for _, o := range render(t, set...) {
			for _, l := range []string{"name", "instance", "managed-by", "part-of", "version"} {
				if v := o.GetLabels()["app.kubernetes.io/"+l]; !labelValue.MatchString(v) {
					t.Errorf("%v: %s %s: label %s is %q", set, o.GetKind(), o.GetName(), l, v)
				}
			}
		}
	}
}

// TestPodOptions checks the values that change pods: labels, priority, arguments and the update
// strategy.
func TestPodOptions(t *testing.T) {
	all := render(t, "node.podLabels.a=node", "openvswitch.podLabels.a=openvswitch",
		"controller.podLabels.a=controller",
		"node.priorityClassName=high", "controller.priorityClassName=higher", "node.extraArgs[0]=--level=debug",
		"controller.extraArgs[0]=--level=warn", "node.updateStrategy.type=OnDelete",
		"openvswitch.updateStrategy.type=OnDelete", "controller.updateStrategy.type=Recreate")
	node := decode[appsv1.DaemonSet](t, all, "DaemonSet", "hairpin-node")
	ovs := decode[appsv1.DaemonSet](t, all, "DaemonSet", "hairpin-ovs")
	controller := decode[appsv1.Deployment](t, all, "Deployment", "hairpin-controller")
	for component, x := range map[string]struct {
		pod      corev1.PodTemplateSpec
		selector map[string]string
		priority string
	}{
		"node":        {node.Spec.Template, node.Spec.Selector.MatchLabels, "high"},
		"openvswitch": {ovs.Spec.Template, ovs.Spec.Selector.MatchLabels, "high"},
		"controller":  {controller.Spec.Template, controller.Spec.Selector.MatchLabels, "higher"},
	} {
		if x.pod.Labels["a"] != component || x.pod.Spec.PriorityClassName != x.priority {
			t.Errorf("%s: labels %v, priority %s", component, x.pod.Labels, x.pod.Spec.PriorityClassName)
		}
		for k, v := range x.selector {
			if x.pod.Labels[k] != v {
				t.Errorf("%s: selector %v, labels %v", component, x.selector, x.pod.Labels)
			}
		}
	}
	if got := fmt.Sprintln(node.Spec.UpdateStrategy.Type, ovs.Spec.UpdateStrategy.Type, controller.Spec.Strategy.Type,
		container(t, node.Spec.Template.Spec, "agent").Args,
		container(t, controller.Spec.Template.Spec, "controller").Args); got !=
		"OnDelete OnDelete Recreate [--level=debug] [--level=warn]\n" {
		t.Error(got)
	}
	cleanup := decode[appsv1.DaemonSet](t, render(t, "cleanup=true", "node.updateStrategy.type=OnDelete"), "DaemonSet",
		"hairpin-node")
	if cleanup.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType {
		t.Error("with OnDelete, Hairpin is not removed")
	}
}

// TestControllerProbes checks that the kubelet asks the controller at an address of its
// configuration, and by its socket without one.
func TestControllerProbes(t *testing.T) {
	for address, want := range map[string]string{
		`127.0.0.1:10253\,[::1]:10253`: "127.0.0.1:10253", "10.0.0.1:99": "10.0.0.1:99", "": "exec"} {
		pod := decode[appsv1.Deployment](t, render(t, "config.default.controller-healthz-bind-address="+address),
			"Deployment", "hairpin-controller").Spec.Template.Spec
		c := container(t, pod, "controller")
		for path, p := range map[string]*corev1.Probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
			got := "exec"
			if p.HTTPGet != nil {
				got = fmt.Sprintf("%s:%s", p.HTTPGet.Host, p.HTTPGet.Port.String())
				if p.HTTPGet.Path != path {
					t.Errorf("%s: path %s", address, p.HTTPGet.Path)
				}
			}
			if got != want {
				t.Errorf("%q: the kubelet asks %s for %s, not %s", address, got, path, want)
			}
		}
	}
}

// TestUserRoles checks which rights the chart adds to the roles of users.
func TestUserRoles(t *testing.T) {
	role := func(all []*unstructured.Unstructured, name string) (found *rbacv1.ClusterRole) {
		if slices.ContainsFunc(all, func(o *unstructured.Unstructured) bool {
			return o.GetKind() == "ClusterRole" && o.GetName() == name
		}) {
			found = decode[rbacv1.ClusterRole](t, all, "ClusterRole", name)
		}
		return found
	}
	all := render(t)
	view := role(all, "hairpin-view")
	if view == nil || role(all, "hairpin-edit") != nil {
		t.Fatal("by default, users may not only read")
	}
	if view.Labels["rbac.authorization.k8s.io/aggregate-to-view"] != "true" ||
		!slices.Equal(view.Rules[0].Verbs, []string{"get", "list", "watch"}) {
		t.Errorf("%+v", view)
	}
	edit := role(render(t, "rbac.aggregateEdit=true"), "hairpin-edit")
	if edit == nil || edit.Labels["rbac.authorization.k8s.io/aggregate-to-edit"] != "true" ||
		!slices.Equal(edit.Rules[0].Resources, []string{"egressservices"}) {
		t.Errorf("%+v", edit)
	}
	if role(render(t, "rbac.aggregateView=false"), "hairpin-view") != nil {
		t.Error("users may read")
	}
}

// TestHelmTest checks the pod of `helm test`: it is no part of the release, and has few privileges.
func TestHelmTest(t *testing.T) {
	args := []string{"template", "hairpin", "hairpin", "--show-only", "templates/tests/status.yaml"}
	for _, s := range append(slices.Clone(chart.Images), "apiServer.host=172.18.0.10") {
		args = append(args, "--set", s)
	}
	out, problem, err := helmDoes(t, args...)
	if err != nil {
		t.Fatal(err, problem)
	}
	objects, err := chart.Objects(out)
	must(t, err)
	pod := decode[corev1.Pod](t, objects, "Pod", "hairpin-test")
	s := pod.Spec.Containers[0].SecurityContext
	if pod.Annotations["helm.sh/hook"] != "test" || pod.Spec.HostNetwork || *pod.Spec.AutomountServiceAccountToken ||
		s.Privileged != nil || len(s.Capabilities.Add) > 0 {
		t.Errorf("%+v", pod)
	}
	if slices.ContainsFunc(render(t), func(o *unstructured.Unstructured) bool { return o.GetKind() == "Pod" }) {
		t.Error("the rendered chart has the pod")
	}
}
