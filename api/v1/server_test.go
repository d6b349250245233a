package v1_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	v1 "hairpin/api/v1"
	"hairpin/lab"
)

// TestServer: a real API server accepts the definition, rejects invalid objects, and returns valid
// ones unchanged.
func TestServer(t *testing.T) {
	server, _ := lab.StartAPI(t) // skips without root
	config, err := server.RESTConfig()
	check(t, err)
	client, err := dynamic.NewForConfig(config)
	check(t, err)
	define(t, client)

	eips := client.Resource(v1.GroupVersion().WithResource(v1.EgressIPResource))
	for _, c := range []struct{ addresses, says string }{
		{`["172.18.0.33", "FC00:f853:ccd::33"]`, ""},
		{`[]`, "should have at least 1 items"},
		{`["172.18.0.33/16"]`, "canonical form"},
		{`["::ffff:172.18.0.33"]`, "canonical form"},
		{`["host.example"]`, "canonical form"},
		{`["127.0.0.1"]`, "other machines can reach"},
		{`["224.0.0.9"]`, "other machines can reach"},
		{`["fe80::1"]`, "other machines can reach"},
		{`["0.0.0.0"]`, "other machines can reach"},
		{`["fc00::33", "fc00:0::33"]`, "twice"},
	} {
		_, err := eips.Create(t.Context(),
			object(t, `{"apiVersion":"k8s.ovn.org/v1","kind":"EgressIP","metadata":{"generateName":"e-"},
			"spec":{"egressIPs":`+c.addresses+`,"namespaceSelector":{}}}`), metav1.CreateOptions{})
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", c.addresses, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: the server says %v, not %q", c.addresses, err, c.says)
		}
	}
	if _, err := eips.Create(t.Context(),
		object(t,
			`{"apiVersion":"k8s.ovn.org/v1","kind":"EgressIP","metadata":{"name":"none"},"spec":{"egressIPs":["10.0.0.1"]}}`), metav1.CreateOptions{}); err == nil {
		t.Error("an EgressIP without a namespaceSelector is taken")
	}
	for _, c := range []struct{ fields, says string }{
		{`"destinationCIDRs":["192.0.2.0/24","2001:db8::/32"],"excludedCIDRs":["192.0.2.7/32"]`, ""},
		{`"destinationCIDRs":["192.0.2.0"]`, "must be a range"},
		{`"destinationCIDRs":[]`, "should have at least 1 items"},
		{`"excludedCIDRs":["x"]`, "must be a range"},
		{`"whenUnreachable":"Drop"`, "Unsupported value"},
	} {
		_, err := eips.Create(t.Context(),
			object(t, `{"apiVersion":"k8s.ovn.org/v1","kind":"EgressIP","metadata":{"generateName":"e-"},
			"spec":{"egressIPs":["172.18.0.33"],"namespaceSelector":{},`+c.fields+`}}`), metav1.CreateOptions{})
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", c.fields, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: the server says %v, not %q", c.fields, err, c.says)
		}
	}
	made, err := eips.Create(t.Context(), object(t, `{"apiVersion":"k8s.ovn.org/v1","kind":"EgressIP",
		"metadata":{"name":"default"},"spec":{"egressIPs":["172.18.0.33"],"namespaceSelector":{}}}`),
		metav1.CreateOptions{})
	check(t, err)
	selector, _, err := unstructured.NestedFieldNoCopy(made.Object, "spec", "egressNodeSelector")
	check(t, err)
	if got := fmt.Sprint(selector); got != "map[matchExpressions:[map[key:k8s.ovn.org/egress-assignable operator:Exists]]]" {
		t.Errorf("the default of spec.egressNodeSelector is %s", got)
	}
	roundTrip(t, eips)
}

// roundTrip checks that objects of our types are read back unchanged, the status by its own path.
func roundTrip(t *testing.T, eips dynamic.ResourceInterface) {
	want := full()
	text, err := json.Marshal(want)
	check(t, err)
	made, err := eips.Create(t.Context(), object(t, string(text)), metav1.CreateOptions{})
	check(t, err)
	status := object(t, string(text))
	status.SetResourceVersion(made.GetResourceVersion())
	got, err := eips.UpdateStatus(t.Context(), status, metav1.UpdateOptions{})
	check(t, err)
	for _, part := range []string{"spec", "status"} {
		a, err := json.Marshal(got.Object[part])
		check(t, err)
		b, err := json.Marshal(object(t, string(text)).Object[part])
		check(t, err)
		if string(a) != string(b) {
			t.Errorf("%s came back as\n%s, it was\n%s", part, a, b)
		}
	}
}

// define installs the definition and waits until it is served.
func define(t *testing.T, client dynamic.Interface) {
	t.Helper()
	text, err := os.ReadFile(crdFile)
	check(t, err)
	text, err = yaml.YAMLToJSON(text)
	check(t, err)
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
	_, err = crds.Create(t.Context(), object(t, string(text)), metav1.CreateOptions{})
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		_, err := client.Resource(v1.GroupVersion().WithResource(v1.EgressIPResource)).List(ctx, metav1.ListOptions{})
		if err == nil {
			return
		}
		if !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	check(t, o.UnmarshalJSON([]byte(text)))
	return o
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
