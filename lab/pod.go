package lab

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Pod is a network namespace of a node that the node's CNI plugin has connected, as a kubelet and a
// container runtime create for a Pod, but without containers.
type Pod struct {
	node *Node
	podRecord
}

// podRecord is the state of a pod that a later process needs.
type podRecord struct {
	PodConfig
	Sandbox string          // CNI_CONTAINERID
	Address []netip.Addr    // IPv4 first
	Result  json.RawMessage `json:",omitempty"` // of ADD; CHECK and DEL get it (CNI, section 3)
}

// PodConfig names a pod, as Kubernetes does.
type PodConfig struct {
	Namespace, Name, UID string
}

// AddPod makes the pod's network namespace and calls the CNI plugins of the node's first network
// configuration in /etc/cni/net.d with ADD. When it fails, nothing is left.
func (n *Node) AddPod(ctx context.Context, cfg PodConfig) (*Pod, error) {
	return n.AddPodWith(ctx, cfg, func(*Pod) error { return nil })
}

// AddPodWith is AddPod, and calls inside before ADD, when the pod's network namespace has only lo:
// for a program that sends as soon as it can.
func (n *Node) AddPodWith(ctx context.Context, cfg PodConfig, inside func(*Pod) error) (*Pod, error) {
	id := make([]byte, 32)
	_, _ = rand.Read(id) // never fails (crypto/rand)
	p := &Pod{node: n, podRecord: podRecord{PodConfig: cfg, Sandbox: hex.EncodeToString(id)}}
	if _, err := n.Exec(ctx, "sh", "-c",
		fmt.Sprintf("ip netns add %[1]s && ip -n %[1]s link set lo up", p.netnsName())); err != nil {
		return nil, fmt.Errorf("add pod %s: %w", p.Name(), err)
	}
	var out []byte
	err := inside(p)
	if err == nil {
		out, err = p.cni(ctx, "ADD")
	}
	if err == nil {
		err = p.readResult(out)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("add pod %s: %w", p.Name(), err), p.Delete(context.WithoutCancel(ctx)))
	}
	return p, n.change(func(r *nodeRecord) { r.Pods = append(r.Pods, p.podRecord) })
}

// Pods returns the pods of the node in the order in which they were added.
func (n *Node) Pods() []*Pod {
	n.lab.mu.Lock()
	defer n.lab.mu.Unlock()
	var list []*Pod
	for _, r := range n.recorded().Pods {
		list = append(list, &Pod{node: n, podRecord: r})
	}
	return list
}

// Delete calls the plugins with DEL and removes the network namespace, with everything in it. It
// can be called again after an error, for what is left.
func (p *Pod) Delete(ctx context.Context) error {
	_, err := p.cni(ctx, "DEL")
	_, gone := p.node.Exec(ctx, "sh", "-c",
		fmt.Sprintf("[ -e /run/netns/%[1]s ] || exit 0; for p in $(ip netns pids %[1]s); do kill -9 $p; done; "+
			"ip netns del %[1]s", p.netnsName()))
	if err := errors.Join(err, gone); err != nil {
		return fmt.Errorf("delete pod %s: %w", p.Name(), err)
	}
	return p.node.change(func(r *nodeRecord) {
		r.Pods = slices.DeleteFunc(r.Pods, func(x podRecord) bool { return x.Sandbox == p.Sandbox })
	})
}

// Check calls the plugins with CHECK.
func (p *Pod) Check(ctx context.Context) error {
	_, err := p.cni(ctx, "CHECK")
	return err
}

// Name is the pod's name.
func (p *Pod) Name() string { return p.PodConfig.Name }

// Namespace is the pod's Kubernetes namespace.
func (p *Pod) Namespace() string { return p.PodConfig.Namespace }

// Node returns the pod's node.
func (p *Pod) Node() *Node { return p.node }

// IPs are the pod's addresses, IPv4 first.
func (p *Pod) IPs() []netip.Addr { return p.Address }

// netnsName returns the name of the namespace under /run/netns of the node. It is derived from the
// sandbox, as a container runtime does.
func (p *Pod) netnsName() string { return "cni-" + p.Sandbox[:12] }

// Netns returns the path of the pod's network namespace on the machine.
func (p *Pod) Netns() string { return p.node.Path("/run/netns/" + p.netnsName()) }

// Argv returns the command line that runs a command in the pod's network, on the node's file
// system.
func (p *Pod) Argv(args ...string) []string {
	return p.node.Argv(append([]string{"ip", "netns", "exec", p.netnsName()}, args...)...)
}

// Command prepares such a command. It ends with the node, and with ctx.
func (p *Pod) Command(ctx context.Context, args ...string) *exec.Cmd {
	return enter(ctx, p.Argv(args...))
}

// Exec runs a command as Command does and returns its standard output.
func (p *Pod) Exec(ctx context.Context, args ...string) (string, error) {
	return output(p.Name(), p.Command(ctx, args...), args)
}

func (p *Pod) onMachine(ctx context.Context, args ...string) *exec.Cmd {
	return enter(ctx, append([]string{"nsenter", "--target", strconv.Itoa(p.node.holder.PID), "--pid", "--net=" +
		p.Netns(), "--"}, args...))
}

// cni calls every plugin of the network configuration, in the order that the command requires, and
// returns the last result.
func (p *Pod) cni(ctx context.Context, command string) (result []byte, err error) {
	list, err := p.node.networkConfiguration()
	if err != nil {
		return nil, err
	}
	plugins := slices.Clone(list.Plugins)
	if command == "DEL" {
		slices.Reverse(plugins)
	}
	env := []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + p.Sandbox, "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin",
		"CNI_NETNS=/run/netns/" + p.netnsName(),
		fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=%s",
			p.Namespace(), p.Name(), p.Sandbox, p.UID),
	}
	for _, plugin := range plugins {
		previous := result
		if command != "ADD" {
			previous = p.Result
		}
		conf, err := list.configOf(plugin, previous)
		if err != nil {
			return nil, err
		}
		kind, ok := plugin["type"].(string)
		if !ok || strings.Contains(kind, "/") {
			return nil, fmt.Errorf("network configuration %s: a plugin without a type", list.Name)
		}
		args := append(append([]string{"env"}, env...), "/opt/cni/bin/"+kind)
		out, err := p.node.ExecInput(ctx, string(conf), args...)
		if err != nil {
			// errors are on stdout (CNI, section 4)
			return nil, fmt.Errorf("CNI %s: %w: %s", command, err, strings.TrimSpace(out))
		}
		result = []byte(out)
	}
	return result, nil
}

// networkList is a network configuration list of CNI; see https://www.cni.dev/docs/spec/, section
// 1.
type networkList struct {
	CNIVersion string           `json:"cniVersion"`
	Name       string           `json:"name"`
	Plugins    []map[string]any `json:"plugins"`
}

// networkConfiguration reads the node's first list, as a container runtime does.
func (n *Node) networkConfiguration() (*networkList, error) {
	files, err := filepath.Glob(n.Path("/etc/cni/net.d/*.conflist"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no network configuration in /etc/cni/net.d", n.name)
	}
	slices.Sort(files)
	text, err := os.ReadFile(files[0])
	if err != nil {
		return nil, fmt.Errorf("read network configuration: %w", err)
	}
	list := &networkList{}
	if err := json.Unmarshal(text, list); err != nil {
		return nil, fmt.Errorf("read network configuration %s: %w", filepath.Base(files[0]), err)
	}
	return list, nil
}

// configOf returns the standard input of a plugin of the list.
func (l *networkList) configOf(plugin map[string]any, previous []byte) ([]byte, error) {
	conf := map[string]any{"cniVersion": l.CNIVersion, "name": l.Name}
	for k, v := range plugin {
		conf[k] = v
	}
	if len(previous) > 0 {
		conf["prevResult"] = json.RawMessage(previous)
	}
	return json.Marshal(conf)
}

// readResult reads the addresses from the result of ADD.
func (p *Pod) readResult(result []byte) error {
	var r struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return fmt.Errorf("result of CNI ADD: %w: %s", err, result)
	}
	for _, ip := range r.IPs {
		p.Address = append(p.Address, ip.Address.Addr())
	}
	slices.SortFunc(p.Address, netip.Addr.Compare)
	p.Result = result
	if len(p.Address) == 0 {
		return fmt.Errorf("result of CNI ADD has no address: %s", result)
	}
	return nil
}
