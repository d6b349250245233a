package parse

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
)

// shutdownMessage is the message of the condition Ready while kubelet shuts the node down
// (nodeShutdownNotReadyReason in kubelet's nodeshutdown_manager_linux.go). Its pods still run.
const shutdownMessage = "node is shutting down"

type nodeParser struct {
	objectParser
	node *cluster.Node
}

// Node returns the facts of a Node. Invalid parts are omitted.
func Node(o *corev1.Node) (*cluster.Node, []cluster.Problem) {
	p := nodeParser{objectParser{owner: cluster.NodeOwner(o.Name)}, &cluster.Node{Name: o.Name, UID: string(o.UID),
		Created: o.CreationTimestamp.UTC(), Zone: o.Labels[corev1.LabelTopologyZone]}}
	p.lifecycle(o)
	p.addresses(o)
	p.podCIDRs(o)
	object := &p.objectParser
	readAnnotation(object, o.Annotations, annotation.NodeID, annotation.ParseNodeID, &p.node.ID)
	readAnnotation(object, o.Annotations, annotation.HostCIDRs, annotation.ParseHostCIDRs, &p.node.HostAddresses)
	p.completeHostAddresses()
	readAnnotation(object, o.Annotations, annotation.HostLinks, annotation.ParseHostLinks, &p.node.Links)
	readAnnotation(object, o.Annotations, annotation.HostRules, annotation.ParseHostRules, &p.node.Rules)
	readAnnotation(object, o.Annotations, annotation.HostPorts, annotation.ParseHostPorts, &p.node.HostPorts)
	readAnnotation(object, o.Annotations, annotation.Gateway, annotation.ParseGateway, &p.node.Gateway)
	return p.node, p.problems.List()
}

// taintAutoscaler is the taint that the cluster autoscaler adds to a Node before it removes the
// Node.
const taintAutoscaler = "ToBeDeletedByClusterAutoscaler"

func (p *nodeParser) lifecycle(o *corev1.Node) {
	p.node.Leaving = o.DeletionTimestamp != nil
	for _, t := range o.Spec.Taints {
		p.node.Leaving = p.node.Leaving || t.Key == taintAutoscaler
	}
	_, shutdown := o.Annotations[annotation.Shutdown]
	for _, c := range o.Status.Conditions {
		switch c.Type {
		case corev1.NodeNetworkUnavailable:
			p.node.NetworkUnavailable = string(c.Status)
		case corev1.NodeReady:
			stops := c.Status == corev1.ConditionFalse && strings.Contains(c.Message, shutdownMessage)
			p.node.Egress.Ready = c.Status == corev1.ConditionTrue || stops
			shutdown = shutdown || stops
		}
	}
	_, p.node.Egress.Assignable = o.Labels[cluster.LabelEgressAssignable]
	p.node.Egress.Labels = maps.Clone(o.Labels)
	p.node.Egress.Leaving = p.node.Leaving || o.Spec.Unschedulable || shutdown
}

func (p *nodeParser) addresses(o *corev1.Node) {
	for i, a := range o.Status.Addresses {
		addr, err := cluster.ParseHostAddr(a.Address)
		if err == nil && !slices.Contains(p.node.IPs, addr) {
			p.node.IPs = append(p.node.IPs, addr)
		}
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		if err != nil {
			p.problem(fmt.Sprintf("status.addresses[%d].address", i), "%v", err)
			continue
		}
		if !p.node.Address(cluster.FamilyOf(addr)).IsValid() {
			p.node.Addresses = append(p.node.Addresses, addr)
		}
	}
	slices.SortFunc(p.node.Addresses, netip.Addr.Compare)
	slices.SortFunc(p.node.IPs, netip.Addr.Compare)
}

func (p *nodeParser) podCIDRs(o *corev1.Node) {
	cidrs := o.Spec.PodCIDRs
	if len(cidrs) == 0 && o.Spec.PodCIDR != "" {
		cidrs = []string{o.Spec.PodCIDR}
	}
	for i, text := range cidrs {
		field := fmt.Sprintf("spec.podCIDRs[%d]", i)
		c, ok := cluster.ParsePrefix(text)
		switch {
		case !ok:
			p.problem(field, "%q is not an address range", text)
		case p.node.PodCIDR(cluster.FamilyOf(c.Addr())).IsValid():
			p.problem(field, "%s is a second range of its family; the first is used", text)
		default:
			p.node.PodCIDRs = append(p.node.PodCIDRs, c.Masked())
		}
	}
	slices.SortFunc(p.node.PodCIDRs, cluster.ComparePrefixes)
}

// completeHostAddresses adds the InternalIPs that the annotation does not have.
func (p *nodeParser) completeHostAddresses() {
	for _, a := range p.node.Addresses {
		if !p.node.HasAddress(a) {
			p.node.HostAddresses = append(p.node.HostAddresses, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	slices.SortFunc(p.node.HostAddresses, cluster.ComparePrefixes)
	p.node.HostAddresses = slices.Compact(p.node.HostAddresses)
}
