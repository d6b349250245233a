package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// parsePod returns nil for a Pod that has no address of the pod network and will not get one. It
// returns a starting Pod without addresses.
func parsePod(o *corev1.Pod) (*Pod, []Problem) {
	if o.Spec.HostNetwork || o.Spec.NodeName == "" || o.Status.Phase == corev1.PodSucceeded ||
		o.Status.Phase == corev1.PodFailed {
		return nil, nil
	}
	pod := &Pod{Owner: ownerOf("Pod", &o.ObjectMeta), UID: string(o.UID), Node: o.Spec.NodeName,
		Labels: maps.Clone(o.Labels), Ports: podPorts(&o.Spec)}
	if static := o.Annotations[corev1.MirrorPodAnnotationKey]; static != "" {
		pod.UID = static // as the container runtime knows it
	}
	ips := o.Status.PodIPs
	if len(ips) == 0 && o.Status.PodIP != "" {
		ips = []corev1.PodIP{{IP: o.Status.PodIP}} // a manifest; the API fills both
	}
	var problems Problems
	pod.Asks = annotationList(&problems, pod.Owner, &o.ObjectMeta, AnnotationExtraAddresses, parseHostAddr)
	for i, ip := range ips {
		a, err := parseHostAddr(ip.IP)
		if err != nil {
			problems.Add(pod.Owner, fmt.Sprintf("status.podIPs[%d].ip", i), "%v", err)
			continue
		}
		if !slices.ContainsFunc(pod.IPs, func(b netip.Addr) bool { return FamilyOf(a) == FamilyOf(b) }) {
			pod.IPs = append(pod.IPs, a)
		}
	}
	if len(pod.IPs) == 0 {
		if len(ips) > 0 {
			return nil, problems.List()
		}
		return pod, problems.List()
	}
	slices.SortFunc(pod.IPs, netip.Addr.Compare)
	pod.MAC = MACFor(pod.IPs[0])
	return pod, problems.List()
}

// podPorts returns the named ports of a Pod's containers and sidecars. Of those with the same name
// and protocol it returns the first, as Kubernetes does.
func podPorts(spec *corev1.PodSpec) (list []PodPort) {
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			protocol, err := parseProtocol(p.Protocol)
			if err == nil && p.Name != "" && p.ContainerPort > 0 && p.ContainerPort <= 65535 {
				list = append(list, PodPort{p.Name, protocol, uint16(p.ContainerPort)})
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
	order := func(a, b PodPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol))
	}
	slices.SortStableFunc(list, order)
	return slices.Clip(slices.CompactFunc(list, func(a, b PodPort) bool { return order(a, b) == 0 }))
}
