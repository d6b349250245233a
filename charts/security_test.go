package charts_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	securityFile  = "../docs/operations/security.md"
	containersTop = "<!-- containers -->\n"
	containersEnd = "<!-- end of containers -->\n"
)

// privileged returns the containers that may be privileged, with the reason.
func privileged() map[string]string {
	return map[string]string{
		"ovs":     "loads kernel modules, makes devices, sets up the datapath",
		"agent":   "writes /proc/sys, enters pods' namespaces, sets nft, routes, conntrack",
		"cleanup": "undoes what the agent did; runs only with the value `cleanup`",
	}
}

// TestContainers checks the table of containers' privileges in docs/operations/security.md against
// the chart. No container may have more than it needs.
func TestContainers(t *testing.T) {
	var b strings.Builder
	b.WriteString("| container | network | capabilities | root file system | seccomp | token of the service account " +
		"| folders of the host |\n|---|---|---|---|---|---|---|\n")
	pods := func(set ...string) {
		all := render(t, set...)
		for _, name := range []string{"hairpin-node", "hairpin-ovs"} {
			containers(t, &b, decode[appsv1.DaemonSet](t, all, "DaemonSet", name).Spec.Template.Spec)
		}
		containers(t, &b, decode[appsv1.Deployment](t, all, "Deployment", "hairpin-controller").Spec.Template.Spec)
	}
	pods()
	once := b.String()
	b.Reset()
	containers(t, &b, decode[appsv1.Deployment](t, render(t, "ui.enabled=true"), "Deployment",
		"hairpin-ui").Spec.Template.Spec)
	containers(t, &b, decode[appsv1.DaemonSet](t, render(t, "cleanup=true"), "DaemonSet",
		"hairpin-node").Spec.Template.Spec)
	want := once + b.String() + "\n"
	for _, name := range []string{"agent", "ovs", "cleanup"} {
		want += fmt.Sprintf("`%s` is privileged: it %s.\n", name, privileged()[name])
	}
	text := read(t, securityFile)
	before, rest, ok := bytes.Cut(text, []byte(containersTop))
	got, after, ended := bytes.Cut(rest, []byte(containersEnd))
	if !ok || !ended {
		t.Fatalf("%s has no place for the table of containers", securityFile)
	}
	if *update {
		must(t, os.WriteFile(securityFile,
			slices.Concat(before, []byte(containersTop), []byte(want), []byte(containersEnd), after), 0o644))
		return
	}
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("%s is out of date (go test ./charts -run Containers -update):\n%s", securityFile, diff)
	}
}

// containers writes a line for each container of a pod.
func containers(t *testing.T, b *strings.Builder, pod corev1.PodSpec) {
	host := map[string]string{}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			host[v.Name] = v.HostPath.Path
		}
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		s := c.SecurityContext
		may := "all (privileged)"
		if s.Privileged == nil || !*s.Privileged {
			if s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
				s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
				t.Errorf("%s has capabilities that nobody gave it", c.Name)
			}
			may = "none"
			if s.Capabilities != nil && len(s.Capabilities.Add) > 0 {
				may = fmt.Sprint(s.Capabilities.Add)
			}
		} else if privileged()[c.Name] == "" {
			t.Errorf("%s is privileged, and nobody says why", c.Name)
		}
		root := "writable"
		if s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem {
			root = "read-only"
		}
		seccomp := "none"
		for _, p := range []*corev1.SeccompProfile{podSeccomp(pod), s.SeccompProfile} {
			if p != nil {
				seccomp = string(p.Type)
			}
		}
		token := pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken
		var folders []string
		for _, m := range c.VolumeMounts {
			token = token || m.Name == "token"
			if path := host[m.Name]; path != "" {
				if m.ReadOnly {
					path += " (read-only)"
				}
				folders = append(folders, path)
			}
		}
		network := "the pod's"
		if pod.HostNetwork {
			network = "the host's"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s | %s | %s |\n", c.Name, network, may, root, seccomp,
			map[bool]string{true: "yes", false: "no"}[token], strings.Join(folders, ", "))
	}
}

func podSeccomp(pod corev1.PodSpec) *corev1.SeccompProfile {
	if pod.SecurityContext == nil {
		return nil
	}
	return pod.SecurityContext.SeccompProfile
}
