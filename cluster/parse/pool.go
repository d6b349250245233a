package parse

import (
	"fmt"

	"hairpin/api/v1alpha1"
	"hairpin/cluster"
)

// Pool returns a pool without valid selectors as one without ranges and ports.
func Pool(o *v1alpha1.LoadBalancerPool) (*cluster.Pool, []cluster.Problem) {
	p := objectParser{owner: Owner(o)}
	copied := v1alpha1.LoadBalancerPool{}
	o.DeepCopyInto(&copied)
	pool := &cluster.Pool{Owner: p.owner, UID: string(o.UID), Created: o.CreationTimestamp.Time.UTC(),
		Generation: o.Generation, Labels: copied.Labels, Status: copied.Status}
	for i, text := range o.Spec.Ranges {
		r, err := cluster.ParseAddressRange(text)
		if err != nil {
			p.problem(fmt.Sprintf("spec.ranges[%d]", i), "%v", err)
			continue
		}
		pool.Ranges = append(pool.Ranges, r)
	}
	if own := o.Spec.NodeAddresses; own != nil {
		pool.NodeAddresses, pool.Ranges = true, nil
		for i, text := range own.Ports {
			r, err := cluster.ParsePortRange(text)
			if err != nil {
				p.problem(fmt.Sprintf("spec.nodeAddresses.ports[%d]", i), "%v", err)
				continue
			}
			pool.Ports = append(pool.Ports, r)
		}
	}
	if !p.selectors(
		selectorField{"spec.namespaceSelector", &o.Spec.NamespaceSelector, &pool.Namespaces},
		selectorField{"spec.serviceSelector", &o.Spec.ServiceSelector, &pool.Services},
		selectorField{"spec.nodeSelector", &o.Spec.NodeSelector, &pool.Nodes}) {
		pool.Ranges, pool.Ports = nil, nil
	}
	return pool, p.problems.List()
}
