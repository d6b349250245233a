package cluster

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/selection"
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
	Values   []string // sorted; of In and NotIn
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

// parseSelector checks a selector by the rules of Kubernetes.
func parseSelector(from *metav1.LabelSelector) (Selector, error) {
	checked, err := metav1.LabelSelectorAsSelector(from)
	if err != nil {
		return Selector{}, fmt.Errorf("is not a label selector: %w", err)
	}
	var s Selector
	all, _ := checked.Requirements()
	for _, x := range all {
		r := Requirement{Key: x.Key(), Values: x.Values().List()}
		switch x.Operator() {
		case selection.In, selection.Equals:
			r.Operator = metav1.LabelSelectorOpIn
		case selection.NotIn:
			r.Operator = metav1.LabelSelectorOpNotIn
		case selection.Exists:
			r.Operator = metav1.LabelSelectorOpExists
		case selection.DoesNotExist:
			r.Operator = metav1.LabelSelectorOpDoesNotExist
		default:
			return Selector{}, fmt.Errorf("is not a label selector: operator %q is not known", x.Operator())
		}
		if len(r.Values) == 0 {
			r.Values = nil
		}
		s.Requirements = append(s.Requirements, r)
	}
	// matchLabels have no order: equal selectors must be equal values.
	slices.SortFunc(s.Requirements, func(a, b Requirement) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Operator, b.Operator),
			slices.Compare(a.Values, b.Values))
	})
	return s, nil
}
