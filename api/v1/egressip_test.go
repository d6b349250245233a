package v1_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"hairpin/api/frrk8s"
	v1 "hairpin/api/v1"
	"hairpin/api/v1alpha1"
)

const (
	crdFile        = "../../charts/hairpin/crds/egressips.yaml"
	serviceCRDFile = "../../charts/hairpin/crds/egressservices.yaml"
	poolCRDFile    = "../../charts/hairpin/crds/loadbalancerpools.yaml"

	advertisementCRDFile = "../../charts/hairpin/crds/bgpadvertisements.yaml"
)

func full() *v1.EgressIP {
	selector := &metav1.LabelSelector{
		MatchLabels: map[string]string{"app": "web"},
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "environment", Operator: metav1.LabelSelectorOpNotIn,
			Values: []string{"development"}}},
	}
	return &v1.EgressIP{
		TypeMeta:   metav1.TypeMeta{APIVersion: "k8s.ovn.org/v1", Kind: "EgressIP"},
		ObjectMeta: metav1.ObjectMeta{Name: "egressip-prod", Labels: map[string]string{"a": "b"}},
		Spec: v1.EgressIPSpec{EgressIPs: []string{"172.18.0.33", "172.18.0.44"}, NamespaceSelector: selector,
			PodSelector: *selector.DeepCopy(), EgressNodeSelector: selector.DeepCopy(),
			DestinationCIDRs: []string{"198.51.100.0/24"}, ExcludedCIDRs: []string{"198.51.100.7/32"},
			WhenUnreachable: v1.Release, AddressPool: "edge"},
		Status: v1.EgressIPStatus{
			Addresses: []string{"192.0.2.50"},
			Items:     []v1.EgressIPStatusItem{{Node: "ovn-worker", EgressIP: "172.18.0.33"}},
			Conditions: []metav1.Condition{{Type: v1.ConditionAssigned, Status: metav1.ConditionFalse,
				Reason: "NoMatchingNodeFound", LastTransitionTime: metav1.Now()}},
		},
	}
}

// TestDeepCopy: a copy is equal and shares nothing.
func TestDeepCopy(t *testing.T) {
	list := &v1.EgressIPList{Items: []v1.EgressIP{*full()}}
	copied := list.DeepCopyObject().(*v1.EgressIPList)
	if !reflect.DeepEqual(list, copied) {
		t.Fatalf("%+v is not %+v", copied, list)
	}
	shares(t, reflect.ValueOf(list), reflect.ValueOf(copied), "list")
	services := &v1.EgressServiceList{Items: []v1.EgressService{{
		ObjectMeta: full().ObjectMeta, Status: v1.EgressServiceStatus{Host: "ovn-worker"},
		Spec: v1.EgressServiceSpec{SourceIPBy: v1.SourceNetwork, NodeSelector: *full().Spec.NamespaceSelector,
			Network: "blue"},
	}}}
	again := services.DeepCopyObject().(*v1.EgressServiceList)
	if !reflect.DeepEqual(services, again) ||
		!reflect.DeepEqual(services.Items[0].DeepCopyObject(), &services.Items[0]) {
		t.Fatalf("%+v is not %+v", again, services)
	}
	shares(t, reflect.ValueOf(services), reflect.ValueOf(again), "services")
	pools := &v1alpha1.LoadBalancerPoolList{Items: []v1alpha1.LoadBalancerPool{{
		ObjectMeta: full().ObjectMeta, Spec: v1alpha1.LoadBalancerPoolSpec{Ranges: []string{"192.0.2.0/24"},
			NamespaceSelector: *full().Spec.NamespaceSelector, ServiceSelector: *full().Spec.NamespaceSelector,
			NodeSelector: *full().Spec.NamespaceSelector},
		Status: v1alpha1.LoadBalancerPoolStatus{Conditions: full().Status.Conditions,
			Addresses: []v1alpha1.PoolAddress{{Address: "192.0.2.1", Services: []string{"default/web"}}}},
	}}}
	third := pools.DeepCopyObject().(*v1alpha1.LoadBalancerPoolList)
	if !reflect.DeepEqual(pools, third) || !reflect.DeepEqual(pools.Items[0].DeepCopyObject(), &pools.Items[0]) {
		t.Fatalf("%+v is not %+v", third, pools)
	}
	shares(t, reflect.ValueOf(pools), reflect.ValueOf(third), "pools")
	advertisements := &v1alpha1.BGPAdvertisementList{Items: []v1alpha1.BGPAdvertisement{{
		ObjectMeta: full().ObjectMeta, Spec: v1alpha1.BGPAdvertisementSpec{
			Advertisements:           []string{v1alpha1.AdvertiseEgressIP},
			FRRConfigurationSelector: *full().Spec.NamespaceSelector, NodeSelector: *full().Spec.NamespaceSelector,
			LoadBalancerPoolSelector: *full().Spec.NamespaceSelector},
		Status: v1alpha1.BGPAdvertisementStatus{Nodes: 2, Conditions: full().Status.Conditions},
	}}}
	fourth := advertisements.DeepCopyObject().(*v1alpha1.BGPAdvertisementList)
	if !reflect.DeepEqual(advertisements, fourth) ||
		!reflect.DeepEqual(advertisements.Items[0].DeepCopyObject(), &advertisements.Items[0]) {
		t.Fatalf("%+v is not %+v", fourth, advertisements)
	}
	shares(t, reflect.ValueOf(advertisements), reflect.ValueOf(fourth), "advertisements")
	configurations := &frrk8s.FRRConfigurationList{Items: []frrk8s.FRRConfiguration{{
		ObjectMeta: full().ObjectMeta, Spec: frrk8s.FRRConfigurationSpec{NodeSelector: *full().Spec.NamespaceSelector,
			BGP: frrk8s.BGPConfig{BFDProfiles: []frrk8s.Fields{{"name": "fast"}}, Routers: []frrk8s.Router{{ASN: 64512,
				Prefixes: []string{"192.0.2.1/32"}, Neighbors: []frrk8s.Neighbor{{"address": "10.0.0.1",
					"toAdvertise": map[string]any{"allowed": map[string]any{"prefixes": []any{"192.0.2.1/32"}}}}}}}}},
	}}}
	fifth := configurations.DeepCopyObject().(*frrk8s.FRRConfigurationList)
	if !reflect.DeepEqual(configurations, fifth) ||
		!reflect.DeepEqual(configurations.Items[0].DeepCopyObject(), &configurations.Items[0]) {
		t.Fatalf("%+v is not %+v", fifth, configurations)
	}
	shares(t, reflect.ValueOf(configurations), reflect.ValueOf(fifth), "configurations")
	var none *v1.EgressIP
	if none.DeepCopyObject() != nil || (*v1.EgressIPList)(nil).DeepCopyObject() != nil {
		t.Error("a copy of nothing is something")
	}
}

// shares compares two equal values pointer by pointer.
func shares(t *testing.T, a, b reflect.Value, path string) {
	switch a.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice:
		if !a.IsNil() && a.Pointer() == b.Pointer() && a.Type().String() != "*time.Location" {
			t.Errorf("%s is shared", path)
		}
	}
	switch a.Kind() {
	case reflect.Pointer:
		if !a.IsNil() && a.Type().String() != "*time.Location" {
			shares(t, a.Elem(), b.Elem(), path)
		}
	case reflect.Struct:
		for i := range a.NumField() {
			shares(t, a.Field(i), b.Field(i), path+"."+a.Type().Field(i).Name)
		}
	case reflect.Slice:
		for i := range a.Len() {
			shares(t, a.Index(i), b.Index(i), path)
		}
	}
}

// TestDefinitionHasTheFields: the resource definition and the Go types have the same fields, so
// that the API server drops no field.
func TestDefinitionHasTheFields(t *testing.T) {
	definition(t, crdFile, v1.GroupVersion().WithResource(v1.EgressIPResource), "EgressIP",
		reflect.TypeFor[v1.EgressIP]())
	definition(t, serviceCRDFile, v1.GroupVersion().WithResource(v1.EgressServiceResource), "EgressService",
		reflect.TypeFor[v1.EgressService]())
	definition(t, poolCRDFile, v1alpha1.GroupVersion().WithResource(v1alpha1.PoolResource), "LoadBalancerPool",
		reflect.TypeFor[v1alpha1.LoadBalancerPool]())
	definition(t, advertisementCRDFile, v1alpha1.GroupVersion().WithResource(v1alpha1.AdvertisementResource),
		"BGPAdvertisement", reflect.TypeFor[v1alpha1.BGPAdvertisement]())
}

func definition(t *testing.T, file string, resource schema.GroupVersionResource, kind string, of reflect.Type) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Group    string
			Names    struct{ Plural, Kind string }
			Versions []struct {
				Name   string
				Schema struct {
					OpenAPIV3Schema node `json:"openAPIV3Schema"`
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	v := crd.Spec.Versions[0]
	if resource.Group != crd.Spec.Group || resource.Version != v.Name || crd.Spec.Names.Plural != resource.Resource ||
		crd.Spec.Names.Kind != kind {
		t.Errorf("the definition is of %s/%s %s", crd.Spec.Group, v.Name, crd.Spec.Names.Plural)
	}
	root := v.Schema.OpenAPIV3Schema
	delete(root.Properties, "metadata")
	compare(t, root, of, "")
}

type node struct {
	Type                 string
	Properties           map[string]node
	Items                *node
	AdditionalProperties *node `json:"additionalProperties"`
}

func compare(t *testing.T, s node, of reflect.Type, path string) {
	t.Helper()
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch {
	case s.Items != nil:
		compare(t, *s.Items, of.Elem(), path+"[]")
		return
	case of.Kind() != reflect.Struct || s.Type != "object":
		return
	}
	var fields []string
	for i := range of.NumField() {
		f := of.Field(i)
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case rest == "inline":
			fields = append(fields, "apiVersion", "kind")
		case name != "metadata":
			fields = append(fields, name)
			compare(t, s.Properties[name], f.Type, path+"."+name)
		}
	}
	for _, name := range fields {
		if _, has := s.Properties[name]; !has {
			t.Errorf("the definition has no %s.%s", path, name)
		}
	}
	for name := range s.Properties {
		if !slices.Contains(fields, name) {
			t.Errorf("the Go type has no %s.%s", path, name)
		}
	}
}
