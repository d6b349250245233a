// Package parse reads one Kubernetes object into facts of package cluster.
//
// Each kind of object has a function. Its input is the object, and for some kinds the
// configuration. Its output are facts, all of them valid, and the Problems, each with its field. An
// invalid part is omitted; a part of a policy fails closed. It does not affect other objects. Facts
// share only strings with the object, and the spec of an FRRConfiguration.
//
// The tests of package store cover this package, by Snapshots.
package parse

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/api/clusternetworkpolicy"
	"hairpin/api/frrk8s"
	v1 "hairpin/api/v1"
	"hairpin/api/v1alpha1"
	"hairpin/cluster"
	"hairpin/cluster/annotation"
)

// Owner returns the name of an object; the zero Owner for a type that this package does not
// parse. It omits the namespace that an incorrect manifest may give to a cluster-wide object.
func Owner(obj any) cluster.Owner {
	switch o := obj.(type) {
	case *corev1.Node:
		return cluster.NodeOwner(o.Name)
	case *corev1.Namespace:
		return cluster.NamespaceOwner(o.Name)
	case *corev1.Pod:
		return namespaced("Pod", &o.ObjectMeta)
	case *corev1.Service:
		return namespaced("Service", &o.ObjectMeta)
	case *discoveryv1.EndpointSlice:
		return namespaced("EndpointSlice", &o.ObjectMeta)
	case *networkingv1.ServiceCIDR:
		return cluster.Owner{Kind: "ServiceCIDR", Name: o.Name}
	case *networkingv1.NetworkPolicy:
		return namespaced("NetworkPolicy", &o.ObjectMeta)
	case *clusternetworkpolicy.ClusterNetworkPolicy:
		return cluster.Owner{Kind: "ClusterNetworkPolicy", Name: o.Name}
	case *v1.EgressIP:
		return cluster.Owner{Kind: "EgressIP", Name: o.Name}
	case *v1.EgressService:
		return namespaced("EgressService", &o.ObjectMeta)
	case *v1alpha1.LoadBalancerPool:
		return cluster.Owner{Kind: "LoadBalancerPool", Name: o.Name}
	case *v1alpha1.BGPAdvertisement:
		return cluster.Owner{Kind: "BGPAdvertisement", Name: o.Name}
	case *frrk8s.FRRConfiguration:
		return cluster.FRRConfigurationOwner(o)
	}
	return cluster.Owner{}
}

func namespaced(kind string, o *metav1.ObjectMeta) cluster.Owner {
	return cluster.Owner{Kind: kind, Namespace: o.Namespace, Name: o.Name}
}

// objectParser collects the problems of one object.
type objectParser struct {
	owner    cluster.Owner
	problems cluster.Problems
}

func (p *objectParser) problem(field, format string, args ...any) {
	p.problems.Add(p.owner, field, format, args...)
}

// selectorField is a label selector of an object.
type selectorField struct {
	field string
	from  *metav1.LabelSelector
	to    *cluster.Selector
}

// selectors parses label selectors, and reports whether all are valid.
func (p *objectParser) selectors(list ...selectorField) (valid bool) {
	valid = true
	for _, s := range list {
		var err error
		if *s.to, err = parseSelector(s.from); err != nil {
			p.problem(s.field, "%v", err)
			valid = false
		}
	}
	return valid
}

// readAnnotation sets a fact from an annotation, if the object has it.
func readAnnotation[T any](p *objectParser, annotations map[string]string, name string,
	parse func(text string) (T, []error), to *T) {
	text, ok := annotations[name]
	if !ok {
		return
	}
	var wrong []error
	*to, wrong = parse(text)
	for _, err := range wrong {
		p.problem(annotation.Field(name), "%v", err)
	}
}

// deref returns what s points to, or the zero value.
func deref[T any](s *T) T {
	if s == nil {
		var zero T
		return zero
	}
	return *s
}
