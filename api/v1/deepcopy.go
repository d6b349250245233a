package v1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// DeepCopyInto copies e; out shares nothing with it.
func (e *EgressIP) DeepCopyInto(out *EgressIP) {
	*out = *e
	e.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	e.Spec.DeepCopyInto(&out.Spec)
	e.Status.DeepCopyInto(&out.Status)
}

// DeepCopy copies e.
func (e *EgressIP) DeepCopy() *EgressIP {
	if e == nil {
		return nil
	}
	out := &EgressIP{}
	e.DeepCopyInto(out)
	return out
}

// DeepCopyObject copies e.
func (e *EgressIP) DeepCopyObject() runtime.Object {
	if c := e.DeepCopy(); c != nil {
		return c
	}
	return nil
}

// DeepCopyInto copies s; out shares nothing with it.
func (s *EgressIPSpec) DeepCopyInto(out *EgressIPSpec) {
	out.EgressIPs = slices.Clone(s.EgressIPs)
	out.NamespaceSelector = s.NamespaceSelector.DeepCopy()
	s.PodSelector.DeepCopyInto(&out.PodSelector)
	out.WhenUnreachable, out.AddressPool = s.WhenUnreachable, s.AddressPool
	out.EgressNodeSelector = s.EgressNodeSelector.DeepCopy()
	out.DestinationCIDRs, out.ExcludedCIDRs = slices.Clone(s.DestinationCIDRs), slices.Clone(s.ExcludedCIDRs)
}

// DeepCopyInto copies s; out shares nothing with it.
func (s *EgressIPStatus) DeepCopyInto(out *EgressIPStatus) {
	out.Items, out.Addresses = slices.Clone(s.Items), slices.Clone(s.Addresses)
	out.Conditions = nil
	if s.Conditions != nil {
		out.Conditions = make([]metav1.Condition, len(s.Conditions))
		for i := range s.Conditions {
			s.Conditions[i].DeepCopyInto(&out.Conditions[i])
		}
	}
}

// DeepCopyInto copies l; out shares nothing with it.
func (l *EgressIPList) DeepCopyInto(out *EgressIPList) {
	*out = *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = nil
	if l.Items != nil {
		out.Items = make([]EgressIP, len(l.Items))
		for i := range l.Items {
			l.Items[i].DeepCopyInto(&out.Items[i])
		}
	}
}

// DeepCopy copies l.
func (l *EgressIPList) DeepCopy() *EgressIPList {
	if l == nil {
		return nil
	}
	out := &EgressIPList{}
	l.DeepCopyInto(out)
	return out
}

// DeepCopyObject copies l.
func (l *EgressIPList) DeepCopyObject() runtime.Object {
	if c := l.DeepCopy(); c != nil {
		return c
	}
	return nil
}
