package controller_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	v1 "hairpin/api/v1"
	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/watch"
)

// raw calls the API with JSON and returns the answer.
func raw(t *testing.T, client kubernetes.Interface, verb, path, text string) ([]byte, error) {
	t.Helper()
	r := client.CoreV1().RESTClient().Verb(verb)
	if verb == "PATCH" {
		r = client.CoreV1().RESTClient().Patch(types.MergePatchType)
	} else {
		r = r.SetHeader("Content-Type", "application/json")
	}
	return r.AbsPath(path).SetHeader("Accept", "application/json").Body([]byte(text)).DoRaw(t.Context())
}

// defineEgressIPs installs the resource definition of the chart. Without own, it has no status
// subresource, as older definitions.
func defineEgressIPs(t *testing.T, client kubernetes.Interface, own bool) {
	t.Helper()
	text, err := os.ReadFile("../charts/hairpin/crds/egressips.yaml")
	noError(t, err)
	if !own {
		text = []byte(strings.Replace(string(text), "    subresources:\n      status: {}\n", "", 1))
	}
	text, err = yaml.YAMLToJSON(text)
	noError(t, err)
	_, err = raw(t, client, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", string(text))
	noError(t, err)
	soon(t, 30*time.Second, func() string {
		if _, err := raw(t, client, "GET", watch.EgressIPPath(), ""); err != nil {
			return err.Error()
		}
		return ""
	})
}

// carrying returns the status of an EgressIP: "172.18.0.33 a True …".
func carrying(t *testing.T, client kubernetes.Interface, name string) string {
	t.Helper()
	text, err := raw(t, client, "GET", watch.EgressIPPath()+"/"+name, "")
	if err != nil {
		return err.Error()
	}
	var e v1.EgressIP
	noError(t, json.Unmarshal(text, &e))
	var words []string
	for _, i := range e.Status.Items {
		words = append(words, i.EgressIP+" "+i.Node)
	}
	for _, c := range e.Status.Conditions {
		words = append(words, fmt.Sprintf("%s=%s (%s)", c.Type, c.Status, c.Reason))
	}
	return strings.Join(words, ", ")
}

// addCarrier creates a ready Node with the label, in the network 172.18.0.0/16.
func addCarrier(t *testing.T, client kubernetes.Interface, name, address string) {
	t.Helper()
	gateway := `{"default":{"mode":"shared","bridge-id":"br-ex","uplink":"eth0","mac-address":"02:42:ac:12:00:03","ip-addresses":["` + address + `/16"]}}`
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{cluster.LabelEgressAssignable: ""},
		Annotations: map[string]string{annotation.Gateway: gateway, annotation.HostCIDRs: `["` + address +
			`/16"]`, annotation.HostPorts: `{"checked":["1-65535"]}`},
	}}
	_, err := client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{})
	noError(t, err)
	status := `{"status":{"addresses":[{"type":"InternalIP","address":"` + address +
		`"}],"conditions":[{"type":"Ready","status":"True"}]}}`
	_, err = client.CoreV1().Nodes().PatchStatus(t.Context(), name, []byte(status))
	noError(t, err)
}

// TestControllerEgressIPs checks that addresses get nodes and leave a cordoned node, and that the
// status explains an address without a node.
func TestControllerEgressIPs(t *testing.T) {
	p := startControlPlane(t)
	for _, own := range []bool{true, false} {
		t.Run(fmt.Sprintf("status of its own %v", own), func(t *testing.T) { testEgressIPs(t, p, own) })
	}
}

func testEgressIPs(t *testing.T, p *controlPlane, own bool) {
	c := p.client
	defineEgressIPs(t, c, own)
	defer func() {
		_, err := raw(t, c, "DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/egressips.k8s.ovn.org",
			"")
		noError(t, err)
		soon(t, 30*time.Second, func() string {
			if _, err := raw(t, c, "GET",
				"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/egressips.k8s.ovn.org", ""); err == nil {
				return "the definition is still there"
			}
			return ""
		})
	}()
	stop := candidate(t, p.own, "one")
	defer stop()
	is := func(name, want string) {
		t.Helper()
		begin := time.Now()
		soon(t, 30*time.Second, func() string {
			if got := carrying(t, c, name); got != want {
				return name + " is " + got + ", not " + want
			}
			return ""
		})
		t.Logf("%s: %s after %s", name, want, time.Since(begin).Round(time.Millisecond))
	}
	const good, alone = "EgressIPAssigned=True (Assigned)", "PodsSelected=True (Selected)"
	create := func(name, addresses string) {
		t.Helper()
		_, err := raw(t, c, "POST", watch.EgressIPPath(),
			`{"apiVersion":"k8s.ovn.org/v1","kind":"EgressIP","metadata":{"name":"`+name+`"},"spec":{"egressIPs":[`+
				addresses+`],"namespaceSelector":{}}}`)
		noError(t, err)
	}
	create("e", `"172.18.0.33"`)
	is("e", "EgressIPAssigned=False (NoMatchingNodeFound), "+alone)
	soon(t, 30*time.Second, func() string {
		list, err := c.CoreV1().Events("").List(t.Context(),
			metav1.ListOptions{FieldSelector: "reason=NoMatchingNodeFound"})
		noError(t, err)
		for _, e := range list.Items {
			if o := e.InvolvedObject; o.Kind == "EgressIP" && o.Name == "e" && o.APIVersion == "k8s.ovn.org/v1" &&
				o.UID != "" {
				return ""
			}
		}
		return fmt.Sprintf("no event: %v", list.Items)
	})
	addCarrier(t, c, "a", "172.18.0.3")
	is("e", "172.18.0.33 a, "+good+", "+alone)
	addCarrier(t, c, "b", "172.18.0.4")
	p.wantIDs(t, 20*time.Second, "a=1 b=2") // without an ID, it cannot have egress addresses
	soon(t, 60*time.Second, func() string { // until the controller has read b's ID, a gets it
		create("two", `"172.18.0.44", "172.18.0.4"`)
		var got string
		soon(t, 30*time.Second, func() string {
			if got = carrying(t, c, "two"); !strings.HasPrefix(got, "172.18.0.44 ") {
				return "two is " + got
			}
			return ""
		})
		if got == "172.18.0.44 b, EgressIPAssigned=False (UnsupportedRequest), "+alone {
			return ""
		}
		_, err := raw(t, c, "DELETE", watch.EgressIPPath()+"/two", "")
		noError(t, err)
		return "two is " + got
	})
	patch := func(node, text string, sub ...string) {
		t.Helper()
		_, err := c.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(text), metav1.PatchOptions{},
			sub...)
		noError(t, err)
	}
	// A node that shuts down, as its agent says and then as its kubelet says.
	patch("a", `{"metadata":{"annotations":{"hairpin.dev/shutting-down":"true"}}}`)
	is("e", "172.18.0.33 b, "+good+", "+alone)
	patch("a", `{"metadata":{"annotations":{"hairpin.dev/shutting-down":null}}}`)
	patch("b", `{"status":{"conditions":[{"type":"Ready","status":"False","message":"node is shutting down"}]}}`,
		"status")
	is("e", "172.18.0.33 a, "+good+", "+alone)
	patch("b", `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, "status")
	patch("a", `{"spec":{"unschedulable":true}}`)
	is("e", "172.18.0.33 b, "+good+", "+alone)
	_, err := raw(t, c, "POST", watch.EgressIPPath(),
		`{"apiVersion":"k8s.ovn.org/v1","kind":"EgressIP","metadata":{"name":"edge"},"spec":{"egressIPs":["172.18.0.55"],
		"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"x"}},
		"egressNodeSelector":{"matchLabels":{"edge":"yes"}}}}`)
	noError(t, err)
	is("edge", "EgressIPAssigned=False (NoMatchingNodeFound), "+alone)
	patch("b", `{"metadata":{"labels":{"edge":"yes","k8s.ovn.org/egress-assignable":null}}}`)
	is("edge", "172.18.0.55 b, "+good+", "+alone)
	is("e", "172.18.0.33 a, "+good+", "+alone) // b has no label, and the default requires it
	patch("b", `{"metadata":{"labels":{"edge":null,"k8s.ovn.org/egress-assignable":""}}}`)
	is("edge", "EgressIPAssigned=False (NoMatchingNodeFound), "+alone)
	is("e", "172.18.0.33 b, "+good+", "+alone)
	_, err = raw(t, c, "PATCH", watch.EgressIPPath()+"/edge",
		`{"spec":{"namespaceSelector":{"matchLabels":{"no":"namespace"}}}}`)
	noError(t, err)
	is("edge", "EgressIPAssigned=False (NoMatchingNodeFound), PodsSelected=False (NoNamespaceSelected)")
	_, err = raw(t, c, "DELETE", watch.EgressIPPath()+"/edge", "")
	noError(t, err)
	p.removeNode(t, "b")
	is("e", "172.18.0.33 a, "+good+", "+alone) // cordoned, and there is no other
	p.removeNode(t, "a")
	is("e", "EgressIPAssigned=False (NoMatchingNodeFound), "+alone)
}
