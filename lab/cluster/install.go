package cluster

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/image"
	"hairpin/lab"
)

// manifests has the workloads of a cluster besides Hairpin.
//
//go:embed manifests
var manifests embed.FS

// install installs Hairpin and the other workloads, as an administrator would.
func (c *Cluster) install(ctx context.Context) error {
	if c.opt.NodeConfList != "" {
		return c.waitNodes(ctx, c.opt.Nodes...)
	}
	if err := c.InstallHairpin(ctx); err != nil {
		return err
	}
	// Wait before creating workloads: all would be scheduled to the first ready node, and pods of
	// DaemonSets would find no CPU there.
	if err := c.waitNodes(ctx, c.opt.Nodes...); err != nil {
		return err
	}
	c.say("all nodes are ready")
	for _, file := range []string{"dns.yaml", "examples.yaml"} {
		text, err := manifests.ReadFile("manifests/" + file)
		if err != nil {
			return err
		}
		if _, err := c.Kubectl(ctx, string(text), "apply", "-f", "-"); err != nil {
			return err
		}
	}
	return c.WaitWorkloads(ctx)
}

// InstallHairpin installs or upgrades Hairpin from its chart.
func (c *Cluster) InstallHairpin(ctx context.Context, values ...string) error {
	if c.opt.Release != "" {
		return c.InstallRelease(ctx, c.opt.Release, values...)
	}
	images, err := c.imageValues()
	if err != nil {
		return err
	}
	return c.installChart(ctx, filepath.Join("charts", "hairpin"), append(images, values...)...)
}

// imageValues returns the chart's values for the images of the checkout, with whatever Open vSwitch
// these were made.
func (c *Cluster) imageValues() ([]string, error) {
	ovsTag, err := image.OVSTagIn(filepath.Join(c.opt.Root, hairpinArchive))
	if err != nil {
		return nil, fmt.Errorf("%w (make image-oci writes it)", err)
	}
	return []string{"image.repository=hairpin", "image.tag=dev", "openvswitch.image.tag=" + ovsTag}, nil
}

// Values returns the chart's values that the lab needs, besides the address of the API server.
func (c *Cluster) Values() ([]string, error) {
	images, err := c.imageValues()
	return append(images, c.opt.Values...), err
}

// InstallRelease installs or upgrades Hairpin from a folder that `make release` wrote, whose chart
// names its images.
func (c *Cluster) InstallRelease(ctx context.Context, release string, values ...string) error {
	chart, err := c.inRelease(release, "hairpin-[0-9]*.tgz")
	if err != nil {
		return err
	}
	return c.installChart(ctx, chart, values...)
}

// ReleaseImages returns the archive of images in such a folder, as Import takes it.
func (c *Cluster) ReleaseImages(release string) (string, error) {
	return c.inRelease(release, "hairpin-images*.tar")
}

func (c *Cluster) inRelease(release, pattern string) (string, error) {
	found, err := filepath.Glob(filepath.Join(c.opt.Root, release, pattern))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("release %s has %d files %s: %w", release, len(found), pattern,
			cmp.Or(err, fs.ErrNotExist))
	}
	return filepath.Rel(c.opt.Root, found[0])
}

func (c *Cluster) installChart(ctx context.Context, chart string, values ...string) error {
	chart = filepath.Join(c.opt.Root, chart)
	definitions, err := c.Helm(ctx, "show", "crds", chart) // helm upgrade does not change them
	if err == nil {
		_, err = c.Kubectl(ctx, definitions, "apply", "--server-side", "--force-conflicts", "--filename", "-")
	}
	if err != nil {
		return err
	}
	args := []string{
		"upgrade", "--install", "hairpin", chart, "--namespace", "hairpin", "--create-namespace",
		"--set", "apiServer.host=" + c.apiAddress().String(), "--set", fmt.Sprint("apiServer.port=", APIPort),
	}
	for _, v := range slices.Concat(c.opt.Values, values) {
		args = append(args, "--set", v)
	}
	if _, err := c.Helm(ctx, args...); err != nil {
		return err
	}
	c.say("helm: installed %s", chart)
	return nil
}

func (c *Cluster) valuesFile() string { return filepath.Join(c.lab.Dir(), "values.json") }

// saveValues keeps the chart's values, so that a process that opens the cluster later upgrades with
// the same values.
func (c *Cluster) saveValues() error {
	text, err := json.Marshal(c.opt.Values)
	if err != nil {
		return err
	}
	return os.WriteFile(c.valuesFile(), text, 0o644)
}

func (c *Cluster) loadValues() error {
	text, err := os.ReadFile(c.valuesFile())
	if err != nil {
		return err
	}
	return json.Unmarshal(text, &c.opt.Values)
}

// Import imports the images of an archive on all nodes, in place of a registry.
func (c *Cluster) Import(ctx context.Context, file string) error {
	var steps []func() error
	for _, n := range c.lab.Nodes() {
		steps = append(steps, func() error {
			f, err := os.Open(filepath.Join(c.opt.Root, file))
			if err != nil {
				return err
			}
			defer f.Close()
			cmd := n.Command(ctx, "ctr", "--namespace", "k8s.io", "images", "import", "--snapshotter", "overlayfs", "-")
			cmd.Stdin = f
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: import %s: %w: %s", n.Name(), file, err, out)
			}
			return nil
		})
	}
	return lab.Together(steps...)
}

// Helm runs helm with the administrator's kubeconfig.
func (c *Cluster) Helm(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.opt.Root, "bin", "helm"),
		append(args, "--kubeconfig", c.Kubeconfig())...)
	return run(cmd, "")
}

// Kubectl runs kubectl with the administrator's kubeconfig.
func (c *Cluster) Kubectl(ctx context.Context, input string, args ...string) (string, error) {
	path, argv := c.KubectlArgv(args...)
	cmd := exec.CommandContext(ctx, path)
	cmd.Args = argv
	return run(cmd, input)
}

// KubectlArgv returns the program and the command line of kubectl with the administrator's
// kubeconfig.
func (c *Cluster) KubectlArgv(args ...string) (path string, argv []string) {
	return c.kube, append([]string{"kubectl", "--kubeconfig", c.Kubeconfig()}, args...)
}

// Test runs `hairpin test` with the administrator's kubeconfig, and writes its output to out. OVN's
// load balancers do not enforce NetworkPolicies.
func (c *Cluster) Test(ctx context.Context, out io.Writer, args ...string) error {
	args = append([]string{"test", "--kubeconfig", c.Kubeconfig()}, args...)
	if slices.Contains(c.opt.Values, "config.default.service-engine=ovn") {
		args = append(args, "--skip", "NetworkPolicy")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(c.opt.Root, "bin", "hairpin"), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it deletes its namespace
	cmd.WaitDelay = 2 * time.Minute
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("hairpin test: %w", err)
	}
	return nil
}

// LinkKubectl links kubectl into the folder bin of the sources.
func (c *Cluster) LinkKubectl() error {
	link := filepath.Join(c.opt.Root, "bin", "kubectl")
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(c.kube, link)
}

func run(cmd *exec.Cmd, input string) (string, error) {
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// WaitWorkloads waits until every Deployment, DaemonSet and StatefulSet of the cluster matches its
// specification.
func (c *Cluster) WaitWorkloads(ctx context.Context) error {
	missing := ""
	err := wait(ctx, "workloads", func() (bool, error) {
		var err error
		missing, err = c.missing(ctx)
		return missing == "", err
	})
	if err != nil {
		return fmt.Errorf("%w; not ready: %s", err, missing)
	}
	c.say("all workloads are ready")
	return nil
}

// Ready reports whether a pod is ready.
func Ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// missing returns a workload that is not ready.
func (c *Cluster) missing(ctx context.Context) (string, error) {
	all := metav1.ListOptions{}
	apps := c.Client().AppsV1()
	daemons, err := apps.DaemonSets("").List(ctx, all)
	if err != nil {
		return "", err
	}
	for _, d := range daemons.Items {
		s := d.Status
		if s.ObservedGeneration != d.Generation || s.DesiredNumberScheduled == 0 ||
			s.NumberReady != s.DesiredNumberScheduled ||
			s.UpdatedNumberScheduled != s.DesiredNumberScheduled {
			return fmt.Sprintf("DaemonSet %s: %d of %d", d.Name, s.NumberReady, s.DesiredNumberScheduled), nil
		}
	}
	deployments, err := apps.Deployments("").List(ctx, all)
	if err != nil {
		return "", err
	}
	for _, d := range deployments.Items {
		if s := d.Status; s.ObservedGeneration != d.Generation || s.ReadyReplicas != *d.Spec.Replicas ||
			s.UpdatedReplicas != *d.Spec.Replicas {
			return fmt.Sprintf("Deployment %s: %d of %d", d.Name, s.ReadyReplicas, *d.Spec.Replicas), nil
		}
	}
	sets, err := apps.StatefulSets("").List(ctx, all)
	if err != nil {
		return "", err
	}
	for _, d := range sets.Items {
		if s := d.Status; s.ObservedGeneration != d.Generation || s.ReadyReplicas != *d.Spec.Replicas {
			return fmt.Sprintf("StatefulSet %s: %d of %d", d.Name, s.ReadyReplicas, *d.Spec.Replicas), nil
		}
	}
	return "", nil
}

// Uninstall removes Hairpin and its changes to the nodes, as docs/operations/uninstall.md says.
func (c *Cluster) Uninstall(ctx context.Context) error {
	chart := filepath.Join(c.opt.Root, "charts", "hairpin")
	if _, err := c.Helm(ctx, "upgrade", "hairpin", chart, "--namespace", "hairpin", "--reset-then-reuse-values",
		"--set", "cleanup=true"); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "", "--namespace", "hairpin", "rollout", "status", "daemonset/hairpin-node",
		"--timeout", "5m"); err != nil {
		return err
	}
	if _, err := c.Helm(ctx, "uninstall", "hairpin", "--namespace", "hairpin", "--wait"); err != nil {
		return err
	}
	_, err := c.Kubectl(ctx, "", "--namespace", "hairpin", "wait", "--for=delete", "pods", "--all", "--timeout", "3m")
	return err
}
