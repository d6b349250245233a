package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster/annotation"
)

// allNodes is how many nodes the cluster has after more nodes joined it.
const allNodes = 30

// simulatedLabel is a label of the nodes that addNodes adds.
const simulatedLabel = "chaos-simulated"

// addNodes adds nodes to the cluster that do not run: their objects are what kubelets and agents
// write. The undo removes them.
func addNodes(ctx context.Context, r *run, _ Fault) (undo, error) {
	all := metav1.ListOptions{LabelSelector: simulatedLabel}
	leave := func(ctx context.Context) error {
		return retry(ctx, second, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			return r.cluster.Client().CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, all)
		})
	}
	return leave, retry(ctx, second, func(ctx context.Context) error { // the API server may not answer
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		template, err := r.cluster.Client().CoreV1().Nodes().Get(ctx, r.nodes[1], metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := len(r.nodes); i < allNodes; i++ {
			n, err := simulatedNode(i, template)
			if err == nil {
				_, err = r.cluster.Client().CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
			}
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
		}
		return nil
	})
}

// simulatedNode returns a Node with the data of another one, and addresses and a name of its own. A
// DaemonSet for Linux does not select it.
func simulatedNode(i int, template *corev1.Node) (*corev1.Node, error) {
	gateway, wrong := annotation.ParseGateway(template.Annotations[annotation.Gateway])
	if len(wrong) > 0 {
		return nil, fmt.Errorf("node %s: %w", template.Name, errors.Join(wrong...))
	}
	four, six := [4]byte{172, 18, 1, byte(i)}, netip.MustParseAddr("fc00:f853:ccd::1:0").As16()
	six[15] = byte(i)
	gateway.Addresses = []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4(four), 16), netip.PrefixFrom(netip.AddrFrom16(six), 64),
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("simulated-%02d", i), Annotations: maps.Clone(template.Annotations),
			Labels: map[string]string{simulatedLabel: ""},
		},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	n.Annotations[annotation.Gateway] = annotation.FormatGateway(gateway)
	n.Annotations[annotation.HostCIDRs] = annotation.FormatHostCIDRs(gateway.Addresses)
	delete(n.Annotations, annotation.NodeID)
	for _, a := range gateway.Addresses {
		n.Status.Addresses = append(n.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.Addr().String()})
	}
	return n, nil
}
