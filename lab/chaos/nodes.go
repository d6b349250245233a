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

// grown is how many nodes the cluster has after more nodes joined it.
const grown = 30

// simulatedLabel is a label of nodes that joined adds.
const simulatedLabel = "chaos-simulated"

// joined adds nodes to the cluster that do not run: their objects are what kubelets and agents
// write. The heal removes them.
func joined(ctx context.Context, r *run, _ Fault) (heal, error) {
	all := metav1.ListOptions{LabelSelector: simulatedLabel}
	leave := func(ctx context.Context) error {
		return insist(ctx, second, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			return r.cluster.Client().CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, all)
		})
	}
	return leave, insist(ctx, second, func(ctx context.Context) error { // the API server may be away
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		like, err := r.cluster.Client().CoreV1().Nodes().Get(ctx, r.nodes[1], metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := len(r.nodes); i < grown; i++ {
			n, err := simulated(i, like)
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

// simulated returns a Node that a DaemonSet for Linux does not select.
func simulated(i int, like *corev1.Node) (*corev1.Node, error) {
	gateway, wrong := annotation.ParseGateway(like.Annotations[annotation.Gateway])
	if len(wrong) > 0 {
		return nil, fmt.Errorf("node %s: %w", like.Name, errors.Join(wrong...))
	}
	four, six := [4]byte{172, 18, 1, byte(i)}, netip.MustParseAddr("fc00:f853:ccd::1:0").As16()
	six[15] = byte(i)
	gateway.Addresses = []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4(four), 16), netip.PrefixFrom(netip.AddrFrom16(six), 64),
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("simulated-%02d", i), Annotations: maps.Clone(like.Annotations),
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
