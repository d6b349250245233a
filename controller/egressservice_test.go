package controller_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	v1 "hairpin/api/v1"
	"hairpin/cluster"
	"hairpin/watch"
)

// TestControllerEgressServices checks that an EgressService gets a host, which has the label. Both
// leave a cordoned node.
func TestControllerEgressServices(t *testing.T) {
	p := startControlPlane(t)
	c := p.client
	text, err := os.ReadFile("../charts/hairpin/crds/egressservices.yaml")
	noError(t, err)
	text, err = yaml.YAMLToJSON(text)
	noError(t, err)
	_, err = raw(t, c, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", string(text))
	noError(t, err)
	path := watch.EgressServicePath("default")
	soon(t, 30*time.Second, func() string {
		if _, err := raw(t, c, "GET", path, ""); err != nil {
			return err.Error()
		}
		return ""
	})
	stop := candidate(t, p.own, "one")
	defer stop()
	addCarrier(t, c, "a", "172.18.0.3")
	p.wantIDs(t, 20*time.Second, "a=1") // in one Snapshot, nodes get IDs in no order
	addCarrier(t, c, "b", "172.18.0.4")
	p.wantIDs(t, 20*time.Second, "a=1 b=2")
	_, err = raw(t, c, "POST", "/api/v1/namespaces/default/services",
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"type":"LoadBalancer","ports":[{"port":80}]}}`)
	noError(t, err)
	_, err = raw(t, c, "PATCH", "/api/v1/namespaces/default/services/web/status",
		`{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.20"}]}}}`)
	noError(t, err)
	_, err = raw(t, c, "POST", path,
		`{"apiVersion":"k8s.ovn.org/v1","kind":"EgressService","metadata":{"name":"web"},"spec":{}}`)
	noError(t, err)

	is := func(host string, labelled ...string) {
		t.Helper()
		soon(t, 30*time.Second, func() string {
			text, err := raw(t, c, "GET", path+"/web", "")
			noError(t, err)
			var e v1.EgressService
			noError(t, json.Unmarshal(text, &e))
			nodes, err := c.CoreV1().Nodes().List(t.Context(),
				metav1.ListOptions{LabelSelector: cluster.LabelEgressHost + "default-web"})
			noError(t, err)
			var have []string
			for _, n := range nodes.Items {
				have = append(have, n.Name)
			}
			if e.Status.Host != host || !slices.Equal(have, labelled) {
				return fmt.Sprintf("the host is %q, with the label are %q, not %q and %q", e.Status.Host, have, host,
					labelled)
			}
			return ""
		})
	}
	is("a", "a")
	_, err = c.CoreV1().Nodes().Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`),
		metav1.PatchOptions{})
	noError(t, err)
	is("b", "b")
	_, err = raw(t, c, "PATCH", path+"/web", `{"spec":{"sourceIPBy":"Network"}}`)
	noError(t, err)
	is(v1.HostAll)
	_, err = raw(t, c, "PATCH", path+"/web",
		`{"spec":{"sourceIPBy":"LoadBalancerIP","nodeSelector":{"matchLabels":{"edge":"yes"}}}}`)
	noError(t, err)
	is("")
	soon(t, 30*time.Second, func() string {
		list, err := c.CoreV1().Events("default").List(t.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.kind=EgressService"})
		noError(t, err)
		for _, e := range list.Items {
			if strings.Contains(e.Message, "spec.nodeSelector selects none") && e.InvolvedObject.UID != "" {
				return ""
			}
		}
		return fmt.Sprintf("no event: %v", list.Items)
	})
	_, err = c.CoreV1().Nodes().Patch(t.Context(), "b", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"edge":"yes"}}}`), metav1.PatchOptions{})
	noError(t, err)
	is("b", "b")
	_, err = raw(t, c, "DELETE", path+"/web", "")
	noError(t, err)
	soon(t, 30*time.Second, func() string {
		nodes, err := c.CoreV1().Nodes().List(t.Context(),
			metav1.ListOptions{LabelSelector: cluster.LabelEgressHost + "default-web"})
		noError(t, err)
		if len(nodes.Items) > 0 {
			return "it is gone, and a node has its label"
		}
		return ""
	})
}
