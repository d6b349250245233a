package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"hairpin/lab"
)

// Reboot kills every process of a node at once and boots it again, with its disk. It returns when
// the kubelet runs.
func (c *Cluster) Reboot(ctx context.Context, name string) error {
	n := c.lab.Node(name)
	if n == nil {
		return fmt.Errorf("reboot: there is no node %s", name)
	}
	if name == c.controlPlane() {
		return fmt.Errorf("reboot: %s has the control plane, which would not come back", name)
	}
	if err := n.Stop(); err != nil {
		return err
	}
	n, err := c.startNode(ctx, name)
	if err != nil {
		return fmt.Errorf("reboot: %w", err)
	}
	return c.startKubelet(ctx, n, n.Addresses())
}

// AddNode adds a new node and waits until it is ready.
func (c *Cluster) AddNode(ctx context.Context, name string) error {
	if _, err := c.prepare(ctx); err != nil {
		return err
	}
	ready := make(chan struct{})
	close(ready)
	if err := c.addNode(ctx, name, ready); err != nil {
		return err
	}
	return c.waitNodes(ctx, name)
}

// RemoveNode removes a node permanently: it stops the machine and deletes the Node object.
func (c *Cluster) RemoveNode(ctx context.Context, name string) error {
	if name == c.controlPlane() {
		return fmt.Errorf("remove node: %s has the control plane", name)
	}
	if n := c.lab.Node(name); n != nil {
		if err := n.Stop(); err != nil {
			return err
		}
	}
	if err := c.Client().CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("remove node: %w", err)
	}
	return nil
}

// StopServer ends the control plane; StartServer starts it again, with all objects.
func (c *Cluster) StopServer() error { return c.Server().Stop() }

// StartServer starts a stopped control plane and waits until it is ready.
func (c *Cluster) StartServer(ctx context.Context) error {
	server, err := lab.StartAPIServer(ctx, c.serverConfig(c.lab.Host(c.controlPlane())))
	if err != nil {
		return err
	}
	forwarded, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return err
	}
	// Its certificate may be of another CA.
	if err := c.writeKubeconfig(server, forwarded.Host); err != nil {
		return err
	}
	return c.connect(server)
}

// Pod returns a pod as a place where traffic starts. Its node must be up.
func (c *Cluster) Pod(ctx context.Context, namespace, name string) (lab.Place, error) {
	p, err := c.Client().CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	n := c.lab.Node(p.Spec.NodeName)
	if n == nil {
		return nil, fmt.Errorf("pod %s/%s is on no node", namespace, name)
	}
	if p.Spec.HostNetwork {
		return n.Host, nil
	}
	// A container runtime keeps one mount per pod there. The control group of its processes tells
	// which: after a reboot, another pod may already have the address of the status.
	find := fmt.Sprintf("pid=$(grep -ls /pod%s/ /proc/[0-9]*/cgroup | head -n 1 | cut -d / -f 3); "+
		"for n in /run/netns/cni-*; do [ ! $n -ef /proc/$pid/ns/net ] || basename $n; done", p.UID)
	out, err := n.Exec(ctx, "sh", "-c", find)
	if err != nil {
		return nil, err
	}
	found := strings.Fields(out)
	if len(found) != 1 {
		return nil, fmt.Errorf("pod %s/%s: network namespaces: %q", namespace, name, found)
	}
	return n.NetnsAt(name, filepath.Join("/run/netns", found[0])), nil
}
