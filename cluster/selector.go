package cluster

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Selector is a label selector as a plain value: all its Requirements must hold. The zero Selector
// selects everything.
type Selector struct {
	Requirements []Requirement // sorted
}

// Requirement is one condition on the labels of an object.
type Requirement struct {
	Key      string
	Operator metav1.LabelSelectorOperator
	Values   []string // sorted; only of the operators In and NotIn
}

// Matches reports whether an object with these labels is selected.
func (s Selector) Matches(labels map[string]string) bool {
	for i := range s.Requirements {
		if !s.Requirements[i].holds(labels) {
			return false
		}
	}
	return true
}

func (r *Requirement) holds(labels map[string]string) bool {
	v, has := labels[r.Key]
	switch r.Operator {
	case metav1.LabelSelectorOpIn:
		return has && slices.Contains(r.Values, v)
	case metav1.LabelSelectorOpNotIn:
		return !has || !slices.Contains(r.Values, v)
	case metav1.LabelSelectorOpExists:
		return has
	case metav1.LabelSelectorOpDoesNotExist:
		return !has
	}
	return false
}
