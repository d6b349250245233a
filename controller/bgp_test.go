package controller_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"hairpin/api/frrk8s"
	"hairpin/api/v1alpha1"
	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/watch"
)

// define creates a resource definition and waits until its objects are served.
func define(t *testing.T, client kubernetes.Interface, text []byte, path string) {
	t.Helper()
	text, err := yaml.YAMLToJSON(text)
	noError(t, err)
	_, err = raw(t, client, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", string(text))
	noError(t, err)
	soon(t, 30*time.Second, func() string {
		if _, err := raw(t, client, "GET", path, ""); err != nil {
			return err.Error()
		}
		return ""
	})
}

// generated returns the controller's FRRConfigurations: "a 64512 172.18.0.1 [172.18.0.50/32]".
func generated(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	text, err := raw(t, client, "GET", watch.FRRConfigurationPath("frr"), "")
	noError(t, err)
	var list frrk8s.FRRConfigurationList
	noError(t, json.Unmarshal(text, &list))
	var lines []string
	for _, c := range list.Items {
		if c.Labels[cluster.LabelManagedBy] != cluster.ManagedBy {
			continue
		}
		for _, r := range c.Spec.BGP.Routers {
			for _, n := range r.Neighbors {
				lines = append(lines, fmt.Sprint(c.Spec.NodeSelector.MatchLabels["kubernetes.io/hostname"], " ",
					n["asn"], " ",
					n["address"], " ", n["toAdvertise"].(map[string]any)["allowed"].(map[string]any)["prefixes"]))
			}
		}
	}
	return strings.Join(lines, "; ")
}

// advertised returns the status of a BGPAdvertisement: "1 on 2 True Advertised".
func advertised(t *testing.T, client kubernetes.Interface, name string) string {
	t.Helper()
	text, err := raw(t, client, "GET", watch.AdvertisementPath()+"/"+name, "")
	noError(t, err)
	var a v1alpha1.BGPAdvertisement
	noError(t, json.Unmarshal(text, &a))
	out := fmt.Sprintf("%d on %d", a.Status.Prefixes, a.Status.Nodes)
	for _, c := range a.Status.Conditions {
		out += fmt.Sprintf(" %s %s", c.Status, c.Reason)
	}
	return out
}

// logText is a log that is read while it is written.
type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

const frrSource = `{"apiVersion":"frrk8s.metallb.io/v1beta1","kind":"FRRConfiguration","metadata":{"namespace":"frr",
"name":"upstream","labels":{"routes":"upstream"}},"spec":{"bgp":{"bfdProfiles":[{"name":"fast","detectMultiplier":3}],
"routers":[{"asn":64512,"neighbors":[{"address":"172.18.0.1","asn":64513,"bfdProfile":"fast","dualStackAddressFamily":true,"holdTime":"9s",
"keepaliveTime":"3s","toReceive":{"allowed":{"mode":"all"}}}]}]}}}`

// TestControllerBGP checks on a real API server, with the resource definition of frr-k8s, which
// FRRConfigurations exist, and that nothing is written twice.
func TestControllerBGP(t *testing.T) {
	p := startControlPlane(t)
	c := p.client
	definePools(t, c)
	text, err := os.ReadFile("../charts/hairpin/crds/bgpadvertisements.yaml")
	noError(t, err)
	define(t, c, text, watch.AdvertisementPath())
	log := &logText{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	stop := candidateLogging(t, p.own, "one", logger)
	defer func() { stop() }()
	addCarrier(t, c, "a", "172.18.0.3")
	addCarrier(t, c, "b", "172.18.0.4")
	podRange := map[string][]string{}
	for _, n := range []string{"a", "b"} {
		_, err := c.CoreV1().Nodes().Patch(t.Context(), n, types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"kubernetes.io/hostname":"`+n+`"}}}`), metav1.PatchOptions{})
		noError(t, err)
		soon(t, 30*time.Second, func() string { // the lab's Kubernetes allocates it
			node, err := c.CoreV1().Nodes().Get(t.Context(), n, metav1.GetOptions{})
			noError(t, err)
			if podRange[n] = node.Spec.PodCIDRs; len(podRange[n]) != 2 {
				return fmt.Sprintf("%s has the pod ranges %v", n, podRange[n])
			}
			return ""
		})
	}
	noError(t, createPool(t, c, "edge", `"172.18.0.50-172.18.0.59"`, ""))
	createBalancer(t, c, "web")
	advertise := func(name, spec string) error {
		text, err := raw(t, c, "POST", watch.AdvertisementPath(), `{"apiVersion":"hairpin.dev/v1alpha1",
			"kind":"BGPAdvertisement","metadata":{"name":"`+name+`"},"spec":{`+spec+`}}`)
		if err != nil {
			return fmt.Errorf("%w: %s", err, text)
		}
		return nil
	}
	for spec, says := range map[string]string{
		`"advertisements":["Default"],"frrConfigurationSelector":{}`: "supported values",
		`"advertisements":[],"frrConfigurationSelector":{}`:          "at least 1 items",
		`"advertisements":["EgressIP"]`:                              "Required value",
	} {
		if err := advertise("bad", spec); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: the server says %v, not %q", spec, err, says)
		}
	}
	noError(t, advertise("upstream",
		`"advertisements":["LoadBalancer"],"frrConfigurationSelector":{"matchLabels":{"routes":"upstream"}}`))
	is := func(of func() string, want string) {
		t.Helper()
		begin := time.Now()
		soon(t, 30*time.Second, func() string {
			if got := of(); got != want {
				return "is " + got + ", not " + want
			}
			return ""
		})
		t.Logf("%s after %s", want, time.Since(begin).Round(time.Millisecond))
	}
	status := func() string { return advertised(t, c, "upstream") }
	written := func() string { return generated(t, c) }

	// Without frr-k8s, nothing happens but a condition.
	is(status, "0 on 0 False FRRConfigurationNotFound")
	if got := log.String(); strings.Contains(got, "level=WARN") || strings.Contains(got, "level=ERROR") {
		t.Errorf("logged without frr-k8s:\n%s", got)
	}
	text, err = lab.FRRDefinition(t.Context(), "frrconfigurations")
	noError(t, err)
	define(t, c, text, watch.FRRConfigurationPath("frr"))
	_, err = c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "frr"}},
		metav1.CreateOptions{})
	noError(t, err)
	answer, err := raw(t, c, "POST", watch.FRRConfigurationPath("frr"), frrSource)
	if err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
	const both = "a 64513 172.18.0.1 [172.18.0.50/32]; b 64513 172.18.0.1 [172.18.0.50/32]"
	is(written, both)
	is(status, "1 on 2 True Advertised")

	// Another leader writes nothing, although the API server has added default values.
	version := func() string {
		text, err := raw(t, c, "GET", watch.FRRConfigurationPath("frr"), "")
		noError(t, err)
		var list metav1.PartialObjectMetadataList
		noError(t, json.Unmarshal(text, &list))
		var versions []string
		for _, x := range list.Items {
			versions = append(versions, x.Name+" "+x.ResourceVersion)
		}
		return strings.Join(versions, ", ")
	}
	before := version()
	stop()
	stop = candidateLogging(t, p.own, "two", logger)
	createBalancer(t, c, "second")
	is(written, strings.ReplaceAll(both, "]", " 172.18.0.51/32]"))
	noError(t, c.CoreV1().Services("default").Delete(t.Context(), "second", metav1.DeleteOptions{}))
	is(written, both)
	t.Logf("%s, then %s", before, version())
	before = version()
	time.Sleep(6 * time.Second)
	if got := version(); got != before {
		t.Errorf("written again: %s, then %s", before, got)
	}

	// What is changed or deleted by hand is restored. A cordoned node announces nothing.
	_, err = c.CoreV1().RESTClient().Delete().AbsPath(watch.FRRConfigurationPath("frr")).
		Param("labelSelector", cluster.LabelManagedBy+"="+cluster.ManagedBy).DoRaw(t.Context())
	noError(t, err)
	is(written, both)
	_, err = c.CoreV1().Nodes().Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`),
		metav1.PatchOptions{})
	noError(t, err)
	is(written, "b 64513 172.18.0.1 [172.18.0.50/32]")

	// A rejected object is reported, once in the log.
	_, err = raw(t, c, "POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", denyFRR)
	noError(t, err)
	_, err = raw(t, c, "POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
		denyFRRBinding)
	noError(t, err)
	time.Sleep(2 * time.Second) // the API server enforces a new policy after a moment
	noError(t, advertise("pods", `"advertisements":["PodNetwork"],"frrConfigurationSelector":{}`))
	is(func() string { return advertised(t, c, "pods") }, "4 on 2 False FRRConfigurationRejected")
	_, err = c.CoreV1().RESTClient().Delete().
		AbsPath("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/deny-frr").DoRaw(t.Context())
	noError(t, err)
	is(written, fmt.Sprintf("a 64513 172.18.0.1 [%s %s]; b 64513 172.18.0.1 [%s 172.18.0.50/32 %s]", podRange["a"][0],
		podRange["a"][1], podRange["b"][0], podRange["b"][1]))
	is(func() string { return advertised(t, c, "pods") }, "4 on 2 True Advertised")
	if got := log.String(); strings.Count(got, "announce by BGP") != 1 {
		t.Errorf("logged:\n%s", got)
	}

	// Nothing is left of what is deleted.
	_, err = raw(t, c, "DELETE", watch.AdvertisementPath()+"/pods", "")
	noError(t, err)
	is(written, "b 64513 172.18.0.1 [172.18.0.50/32]")
	_, err = raw(t, c, "DELETE", watch.FRRConfigurationPath("frr")+"/upstream", "")
	noError(t, err)
	is(written, "")
	is(status, "0 on 0 False FRRConfigurationNotFound")
	soon(t, 30*time.Second, func() string {
		list, err := c.CoreV1().Events("default").List(t.Context(),
			metav1.ListOptions{FieldSelector: "reason=FRRConfigurationNotFound"})
		noError(t, err)
		for _, e := range list.Items {
			if e.InvolvedObject.Kind == "BGPAdvertisement" && e.InvolvedObject.UID != "" {
				return ""
			}
		}
		return fmt.Sprintf("no event: %v", list.Items)
	})
}

const (
	denyFRR = `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy",
"metadata":{"name":"deny-frr"},"spec":{"failurePolicy":"Fail","matchConstraints":{"resourceRules":[{
"apiGroups":["frrk8s.metallb.io"],"apiVersions":["*"],"operations":["CREATE","UPDATE"],"resources":["*"]}]},
"validations":[{"expression":"false","message":"not today"}]}}`
	denyFRRBinding = `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding",
"metadata":{"name":"deny-frr"},"spec":{"policyName":"deny-frr","validationActions":["Deny"]}}`
)
