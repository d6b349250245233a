package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hairpin/image"
	"hairpin/lab"
)

// Paths on a node.
const (
	containerdFile   = "/etc/containerd/config.toml"
	containerdSocket = "/run/containerd/containerd.sock"
	kubeletFile      = "/etc/kubernetes/kubelet.yaml"
	kubeconfigFile   = "/etc/kubernetes/kubelet.conf"
	caFile           = "/etc/kubernetes/ca.crt"
)

// containerdConfig differs from the default where a lab differs from a machine: images are already
// present, and root lacks the capability that lowering an oom_score_adj needs.
const containerdConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + PauseImage + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
`

// kubeletConfig is what kubeadm would write, except that nothing is evicted for the machine's disk,
// images are never garbage-collected, and control groups of version 1 are accepted.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: ` + caFile + `}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
clusterDNS: [` + dnsAddress + `]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://` + containerdSocket + `
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
imageMinimumGCAge: 1000h
oomScoreAdj: 0
resolvConf: /etc/resolv.conf
`

// startNode plugs a node into the underlay and starts containerd in it. With a disk that was used
// before, this is a boot.
func (c *Cluster) startNode(ctx context.Context, name string) (*lab.Node, error) {
	id := sha256.Sum256([]byte(c.opt.Name + "/" + name))
	cfg := lab.NodeConfig{
		Name: name, Addresses: nodeAddresses(name), Disk: c.disk(name),
		Binds: map[string]string{"/usr/local/bin/kubelet": c.kube},
		Files: map[string]string{
			containerdFile: containerdConfig, kubeletFile: kubeletConfig,
			"/etc/machine-id":  hex.EncodeToString(id[:16]) + "\n",
			"/etc/hostname":    name + "\n",
			"/etc/resolv.conf": "nameserver 172.18.0.1\n",
		},
	}
	n, err := c.lab.StartNode(ctx, cfg)
	if err != nil {
		return nil, err
	}
	// Sysctls that the documentation of Kubernetes requires before a network plugin is installed,
	// and CNI plugins of Debian packages.
	prepare := "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 && cp -n /usr/lib/cni/* /opt/cni/bin/"
	if _, err := n.Exec(ctx, "sh", "-c", prepare); err != nil {
		return nil, err
	}
	return n, startContainerd(ctx, n)
}

// disk returns the directory of a node on the machine. It is beside the cached images, whose files
// it shares.
func (c *Cluster) disk(node string) string {
	return filepath.Join(image.DefaultDir, "disks", c.opt.Name, node)
}

// newDisk makes the disk of a node that has all images.
func (c *Cluster) newDisk(node string) error {
	dir := c.disk(node)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	return copyTree(c.images, filepath.Join(dir, "containerd"))
}

func startContainerd(ctx context.Context, n *lab.Node) error {
	if err := n.StartDaemon(ctx, "containerd", "containerd"); err != nil {
		return err
	}
	err := wait(ctx, n.Name()+": containerd", func() (bool, error) {
		_, err := os.Stat(n.Path(containerdSocket))
		return err == nil, nil
	})
	if err != nil {
		return err
	}
	return nil
}

// identify gives a node its identity and the certificates of the CAs.
func (c *Cluster) identify(n *lab.Node) error {
	for inNode, file := range map[string]string{caFile: "pki/ca.crt", kubeconfigFile: "node-" + n.Name() +
		".kubeconfig"} {
		text, err := os.ReadFile(filepath.Join(c.lab.APIServerDir(), file))
		if err != nil {
			return fmt.Errorf("%s: %w", n.Name(), err)
		}
		if err := n.WriteFile(inNode, string(text)); err != nil {
			return err
		}
	}
	return nil
}

// startKubelet gives a node its identity and starts its kubelet, which reports these addresses.
func (c *Cluster) startKubelet(ctx context.Context, n *lab.Node, addresses []netip.Prefix) error {
	if err := c.identify(n); err != nil {
		return err
	}
	var ips []string
	for _, a := range addresses {
		ips = append(ips, a.Addr().String())
	}
	zone := corev1.LabelTopologyZone + "=zone-" + strings.TrimPrefix(n.Name(), "node-") // one for each node
	return n.StartDaemon(ctx, "kubelet", "kubelet", "--config="+kubeletFile, "--kubeconfig="+kubeconfigFile,
		"--hostname-override="+n.Name(), "--node-ip="+strings.Join(ips, ","), "--node-labels="+zone, "--v=2")
}

// nodeAddresses returns .3 for node-a, .4 for node-b and so on.
func nodeAddresses(name string) []netip.Prefix {
	i := 3 + int(name[len(name)-1]-'a')
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("172.18.0.%d/16", i)),
		netip.MustParsePrefix(fmt.Sprintf("fc00:f853:ccd::%x/64", i)),
	}
}

// wait polls until done returns true, fails, or two minutes or ctx are over.
func wait(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := lab.Poll(ctx, 20*time.Millisecond, done); err != nil {
		return fmt.Errorf("wait for %s: %w", what, err)
	}
	return nil
}
