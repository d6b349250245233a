package lab

import (
	"context"
	"os/exec"
	"strconv"
)

// NetnsPlace is a network namespace of a node, such as that of a pod that a kubelet made.
type NetnsPlace struct {
	node         *Node
	name, inNode string
}

// NetnsAt returns the network namespace that is mounted at a path in the node, under a name for
// reports.
func (n *Node) NetnsAt(name, inNode string) *NetnsPlace { return &NetnsPlace{n, name, inNode} }

// Name is the name for reports.
func (p *NetnsPlace) Name() string { return p.name }

// Netns returns the path of the namespace on the machine.
func (p *NetnsPlace) Netns() string { return p.node.Path(p.inNode) }

func (p *NetnsPlace) onMachine(ctx context.Context, args ...string) *exec.Cmd {
	return enter(ctx, append([]string{"nsenter", "--target", strconv.Itoa(p.node.holder.PID), "--pid", "--net=" +
		p.Netns(), "--"}, args...))
}
