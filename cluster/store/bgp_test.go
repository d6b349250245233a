package store_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/api/frrk8s"
	"hairpin/api/v1alpha1"
	"hairpin/cluster"
)

// TestAdvertisements: what a BGPAdvertisement announces, and what is wrong with it.
func TestAdvertisements(t *testing.T) {
	bad := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "Like"}}}
	for _, c := range []struct {
		spec    v1alpha1.BGPAdvertisementSpec
		problem string
	}{
		{v1alpha1.BGPAdvertisementSpec{Advertisements: []string{"LoadBalancer", "EgressIP", "PodNetwork"}}, ""},
		{v1alpha1.BGPAdvertisementSpec{Advertisements: []string{"LoadBalancer", "Default"}},
			`spec.advertisements[1]: "Default" is none of LoadBalancer, EgressIP and PodNetwork`},
		{v1alpha1.BGPAdvertisementSpec{FRRConfigurationSelector: bad},
			"spec.frrConfigurationSelector: is not a label selector"},
		{v1alpha1.BGPAdvertisementSpec{LoadBalancerPoolSelector: bad},
			"spec.loadBalancerPoolSelector: is not a label selector"},
		{v1alpha1.BGPAdvertisementSpec{NodeSelector: bad}, "spec.nodeSelector: is not a label selector"},
	} {
		o := &v1alpha1.BGPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "x", UID: "u"}, Spec: c.spec}
		st := storeOf(o)
		s := st.Snapshot()
		if len(s.Advertisements) != 1 || s.Advertisements[0].Rejected != (c.problem != "") {
			t.Errorf("%+v: %+v", c.spec, s.Advertisements)
		}
		if a := s.Advertisements[0]; c.problem == "" &&
			!(a.LoadBalancer && a.EgressIP && a.PodNetwork && a.UID == "u") {
			t.Errorf("%+v", a)
		}
		if got := fmt.Sprint(s.Problems); (c.problem == "") != (got == "[]") || !strings.Contains(got, c.problem) {
			t.Errorf("%+v: problems %s, want %s", c.spec, got, c.problem)
		}
		st.Delete(o)
		if s := st.Snapshot(); len(s.Advertisements)+len(s.Problems) > 0 {
			t.Errorf("left: %+v, %v", s.Advertisements, s.Problems)
		}
	}
}

// TestRoutedKeepTheirPointers: an EgressIP that nodes announce by BGP keeps its pointer when
// another one changes.
func TestRoutedKeepTheirPointers(t *testing.T) {
	s := storeOf(egressIP("a", "10.0.0.1"), egressIP("b", "10.0.0.2"), &v1alpha1.BGPAdvertisement{
		ObjectMeta: metav1.ObjectMeta{Name: "x"},
		Spec:       v1alpha1.BGPAdvertisementSpec{Advertisements: []string{v1alpha1.AdvertiseEgressIP}}})
	first := s.Snapshot()
	s.Set(egressIP("b", "10.0.0.3"))
	second := s.Snapshot()
	if len(second.EgressIPs[0].Routed) == 0 || second.EgressIPs[0] != first.EgressIPs[0] ||
		second.EgressIPs[1] == first.EgressIPs[1] {
		t.Error("other pointers than what changed")
	}
}

// TestFRRConfigurations: those of Hairpin and of others, and those that frr-k8s does not use.
func TestFRRConfigurations(t *testing.T) {
	o := func(name string, edit ...func(*frrk8s.FRRConfiguration)) *frrk8s.FRRConfiguration {
		c := &frrk8s.FRRConfiguration{ObjectMeta: metav1.ObjectMeta{Namespace: "frr", Name: name, UID: "u",
			ResourceVersion: "7", Labels: map[string]string{}}}
		for _, e := range edit {
			e(c)
		}
		return c
	}
	ended := metav1.Now()
	st := storeOf(o("theirs"),
		o("ours", func(c *frrk8s.FRRConfiguration) { c.Labels[cluster.LabelManagedBy] = cluster.ManagedBy }),
		o("deleted", func(c *frrk8s.FRRConfiguration) { c.DeletionTimestamp = &ended }),
		o("bad", func(c *frrk8s.FRRConfiguration) {
			c.Spec.NodeSelector.MatchLabels = map[string]string{"a b": "c"}
		}))
	s := st.Snapshot()
	var got []string
	for _, c := range s.FRRConfigurations {
		got = append(got, fmt.Sprint(c.Owner, " ", c.Generated()))
	}
	if want := "[FRRConfiguration/frr/ours true FRRConfiguration/frr/theirs false]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
	st.Set(o("theirs", func(c *frrk8s.FRRConfiguration) { c.ResourceVersion = "8" }))
	if st.Snapshot() != s {
		t.Error("another version of an equal object is a change")
	}
	st.Delete(o("theirs"))
	if s := st.Snapshot(); len(s.FRRConfigurations) != 1 {
		t.Errorf("left: %v", s.FRRConfigurations)
	}
}

// TestRoutedEgressIPs: which nodes announce the addresses of EgressIPs by BGP.
func TestRoutedEgressIPs(t *testing.T) {
	st := storeOf(egressIP("e", "10.9.9.9"))
	if e := st.Snapshot().EgressIPs[0]; e.Routed != nil {
		t.Errorf("routed without a BGPAdvertisement: %v", e.Routed)
	}
	a := &v1alpha1.BGPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: v1alpha1.BGPAdvertisementSpec{
		Advertisements: []string{v1alpha1.AdvertiseEgressIP},
		NodeSelector:   metav1.LabelSelector{MatchLabels: map[string]string{"bgp": "yes"}}}}
	st.Set(a)
	e := st.Snapshot().EgressIPs[0]
	if len(e.Routed) != 1 || !e.Routed[0].Matches(map[string]string{"bgp": "yes"}) || e.Routed[0].Matches(nil) {
		t.Errorf("%+v", e.Routed)
	}
	st.Set(&v1alpha1.LoadBalancerPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}})
	if st.Snapshot().EgressIPs[0] != e {
		t.Error("an equal EgressIP is another pointer")
	}
	st.Delete(a)
	if e := st.Snapshot().EgressIPs[0]; e.Routed != nil {
		t.Errorf("routed after the BGPAdvertisement is gone: %v", e.Routed)
	}
}
