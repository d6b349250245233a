package parse

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
)

// Pod returns nil for a Pod that has no address of the pod network and will not get one, and for
// one with only invalid addresses. It returns a starting Pod without addresses.
func Pod(o *corev1.Pod) (*cluster.Pod, []cluster.Problem) {
	if o.Spec.HostNetwork || o.Spec.NodeName == "" || o.Status.Phase == corev1.PodSucceeded ||
		o.Status.Phase == corev1.PodFailed {
		return nil, nil
	}
	pod := &cluster.Pod{Owner: Owner(o), UID: string(o.UID), Node: o.Spec.NodeName,
		Labels: maps.Clone(o.Labels), Ports: podPorts(&o.Spec)}
	if static := o.Annotations[corev1.MirrorPodAnnotationKey]; static != "" {
		pod.UID = static // as the container runtime knows it
	}
	ips := o.Status.PodIPs
	if len(ips) == 0 && o.Status.PodIP != "" {
		ips = []corev1.PodIP{{IP: o.Status.PodIP}} // a manifest; the API fills both
	}
	p := objectParser{owner: pod.Owner}
	readAnnotation(&p, o.Annotations, annotation.ExtraAddresses, annotation.ParseExtraAddresses, &pod.RequestedExtra)
	for i, ip := range ips {
		a, err := cluster.ParseHostAddr(ip.IP)
		if err != nil {
			p.problem(fmt.Sprintf("status.podIPs[%d].ip", i), "%v", err)
			continue
		}
		if !slices.ContainsFunc(pod.IPs, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			pod.IPs = append(pod.IPs, a)
		}
	}
	if len(pod.IPs) == 0 {
		if len(ips) > 0 {
			return nil, p.problems.List()
		}
		return pod, p.problems.List()
	}
	slices.SortFunc(pod.IPs, netip.Addr.Compare)
	pod.MAC = cluster.MACFor(pod.IPs[0])
	return pod, p.problems.List()
}

// podPorts returns the named ports of a Pod's containers and sidecars. Of those with the same name
// and protocol it returns the first, as Kubernetes does.
func podPorts(spec *corev1.PodSpec) (list []cluster.PodPort) {
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			protocol, err := cluster.ParseProtocol(p.Protocol)
			if err == nil && p.Name != "" && p.ContainerPort > 0 && p.ContainerPort <= 65535 {
				list = append(list, cluster.PodPort{Name: p.Name, Protocol: protocol, Port: uint16(p.ContainerPort)})
			}
		}
	}
	for i := range spec.Containers {
		add(&spec.Containers[i])
	}
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; deref(c.RestartPolicy) == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	order := func(a, b cluster.PodPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol))
	}
	slices.SortStableFunc(list, order)
	return slices.Clip(slices.CompactFunc(list, func(a, b cluster.PodPort) bool { return order(a, b) == 0 }))
}

// Namespace returns the labels of a Namespace, and the extra addresses that its Pods may have.
func Namespace(o *corev1.Namespace) (*cluster.Namespace, []cluster.Problem) {
	p, n := objectParser{owner: Owner(o)}, &cluster.Namespace{Name: o.Name, Labels: maps.Clone(o.Labels)}
	readAnnotation(&p, o.Annotations, annotation.ExtraRanges, annotation.ParseExtraRanges, &n.ExtraRanges)
	return n, p.problems.List()
}
