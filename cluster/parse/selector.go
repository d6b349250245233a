package parse

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/selection"

	"hairpin/cluster"
)

// parseSelector checks a selector by the rules of Kubernetes.
func parseSelector(from *metav1.LabelSelector) (cluster.Selector, error) {
	checked, err := metav1.LabelSelectorAsSelector(from)
	if err != nil {
		return cluster.Selector{}, fmt.Errorf("is not a label selector: %w", err)
	}
	var s cluster.Selector
	all, _ := checked.Requirements()
	for _, x := range all {
		r := cluster.Requirement{Key: x.Key(), Values: x.Values().List()}
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
			return cluster.Selector{}, fmt.Errorf("is not a label selector: operator %q is not known", x.Operator())
		}
		if len(r.Values) == 0 {
			r.Values = nil
		}
		s.Requirements = append(s.Requirements, r)
	}
	// matchLabels have no order: equal selectors must be equal values.
	slices.SortFunc(s.Requirements, func(a, b cluster.Requirement) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Operator, b.Operator),
			slices.Compare(a.Values, b.Values))
	})
	return s, nil
}

// isAssignable reports whether a selector is the default of spec.egressNodeSelector.
func isAssignable(s *cluster.Selector) bool {
	return len(s.Requirements) == 1 && s.Requirements[0].Key == cluster.LabelEgressAssignable &&
		s.Requirements[0].Operator == metav1.LabelSelectorOpExists
}
