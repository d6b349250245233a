package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// lbPool is the LoadBalancerPool of Pooled, and the name of its Service.
const lbPool = "pooled"

// Pooled creates a LoadBalancerPool with one address, which the nodes of the example may announce,
// and a Service of the pod that requests it. Connect connects from the client outside, and Nodes
// waits for the node that announces the address. It needs an API server.
func (g *Egress) Pooled(ctx context.Context, ip string) (*Egress, error) {
	p := *g
	p.name, p.pod, p.to = lbPool, g.d.lab.Host(clientName), netip.AddrPortFrom(netip.MustParseAddr(ip), 80)
	return &p, errors.Join(g.d.Put(ctx, fmt.Sprintf(`
apiVersion: hairpin.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: %s}
spec:
  ranges: [%s-%[2]s]
  nodeSelector: {matchLabels: {%[3]s: ""}}
`, lbPool, ip, egressLabel)), g.d.Put(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec:
  type: LoadBalancer
  loadBalancerClass: hairpin.dev/l2
  selector: {target: podlocal}
  ports: [{port: 80, targetPort: 8080}]
`, lbPool)))
}
