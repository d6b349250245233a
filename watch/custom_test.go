package watch_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	v1 "hairpin/api/v1"
	"hairpin/cluster"
	"hairpin/kubeapi"
	"hairpin/watch"
)

// egress returns the parts of a Snapshot that matter for EgressIPs, as text.
func egress(s *cluster.Snapshot) string {
	if s == nil {
		return "none"
	}
	text := ""
	for _, e := range s.EgressIPs {
		text += fmt.Sprintf("%s%v%v ", e.Owner.Name, e.Addresses, e.Assigned)
	}
	for _, p := range s.Pods {
		text += fmt.Sprintf("%s on %s%v ", p.Owner.Name, p.Node, p.Labels)
	}
	for _, p := range s.Policies {
		text += "policy " + p.Owner.Name + " "
	}
	if s.PodsUnread {
		text += "and Pods that are not read yet"
	}
	return text
}

// asks records the field selectors of requests for Pods.
type asks struct {
	http.RoundTripper
	mu   sync.Mutex
	pods map[string]bool
}

func (a *asks) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/pods") {
		a.mu.Lock()
		a.pods[r.URL.Query().Get("fieldSelector")] = true
		a.mu.Unlock()
	}
	return a.RoundTripper.RoundTrip(r)
}

func (a *asks) want(t *testing.T, what string, want ...string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if got := slices.Sorted(maps.Keys(a.pods)); !slices.Equal(got, want) {
		t.Errorf("%s: Pods are asked for by %q, want %q", what, got, want)
	}
}

// testEgress: a server without the resource has no EgressIPs; with it, they are added and deleted.
// Pods of other nodes are read while this node has an egress address.
func testEgress(t *testing.T, a *api) {
	client := a.client(t)
	agent := &asks{pods: map[string]bool{}}
	c, err := a.server.RESTConfig()
	check(t, err)
	c.Wrap(func(rt http.RoundTripper) http.RoundTripper { agent.RoundTripper = rt; return agent })
	asking, err := kubeapi.New(c)
	check(t, err)
	from := follow(t, asking, "node-a")
	const own, others = "spec.nodeName=node-a", "spec.nodeName!=,spec.nodeName!=node-a"
	for _, x := range []struct{ kind, namespace, doc string }{
		// Kubernetes deletes pods of nodes that do not exist, after 40 s.
		{"Node", "", "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\n" +
			"spec: {podCIDRs: [10.244.1.0/24], podCIDR: 10.244.1.0/24}\n"},
		{"Node", "", "apiVersion: v1\nkind: Node\nmetadata: {name: node-b}\n" +
			"spec: {podCIDRs: [10.244.2.0/24], podCIDR: 10.244.2.0/24}\n"},
		{"Pod", "default", "apiVersion: v1\nkind: Pod\nmetadata: {name: here, labels: {app: web}}\n" +
			"spec: {nodeName: node-a, containers: [{name: c, image: i}]}\nstatus: {podIPs: [{ip: 10.244.1.3}]}\n"},
		{"Pod", "default", "apiVersion: v1\nkind: Pod\nmetadata: {name: there, labels: {app: web}}\n" +
			"spec: {nodeName: node-b, containers: [{name: c, image: i}]}\nstatus: {podIPs: [{ip: 10.244.2.3}]}\n"},
	} {
		object := decode(x.doc)
		check(t, kube{client}.apply(t, object))
		defer func() {
			check(t, kube{client}.delete(t,
				cluster.Owner{Kind: x.kind, Namespace: x.namespace, Name: object.GetName()}))
		}()
	}
	here, there := "here on node-amap[app:web] ", "there on node-bmap[app:web] "
	from.egress(t, "without the resource", here)

	define(t, client)
	write(t, client, "POST", watch.EgressIPPath(),
		`{"apiVersion":"k8s.ovn.org/v1","kind":"EgressIP","metadata":{"name":"e"},"spec":{"egressIPs":["10.0.0.9"],"namespaceSelector":{}}}`)
	from.egress(t, "with an EgressIP", "e[10.0.0.9][] "+here)
	status := func(node string) {
		write(t, client, "PATCH", watch.EgressIPPath()+"/e/status", `{"status":{"items":[{"node":"`+node+
			`","egressIP":"10.0.0.9"}]}}`)
	}
	status("node-b")
	from.egress(t, "on another node", "e[10.0.0.9][{10.0.0.9 node-b}] "+here)
	agent.want(t, "on another node", own)
	status("node-a")
	from.egress(t, "on this node", "e[10.0.0.9][{10.0.0.9 node-a}] "+here+there)
	agent.want(t, "on this node", others, own)
	write(t, client, "DELETE", watch.EgressIPPath()+"/e", "")
	from.egress(t, "deleted", here)
	agent.mu.Lock()
	clear(agent.pods)
	agent.mu.Unlock()
	write(t, client, "POST", watch.EgressIPPath(),
		`{"apiVersion":"k8s.ovn.org/v1","kind":"EgressIP","metadata":{"name":"e"},"spec":{"egressIPs":["10.0.0.9"],"namespaceSelector":{}}}`)
	from.egress(t, "again", "e[10.0.0.9][] "+here)
	agent.want(t, "again")
	status("node-a")
	from.egress(t, "on this node again", "e[10.0.0.9][{10.0.0.9 node-a}] "+here+there)
	agent.want(t, "on this node again", others)
	write(t, client, "DELETE", watch.EgressIPPath()+"/e", "")
	from.egress(t, "deleted again", here)
}

// testPolicies: Pods of other nodes are read while a NetworkPolicy that selects a Pod of this node
// depends on them. A Snapshot with the policy has them. The controller does not read them.
func testPolicies(t *testing.T, a *api) {
	admin := kube{a.client(t)}
	pod := func(name, node, ip string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", labels: {app: web}}\nspec: {nodeName: " +
			node +
			", containers: [{name: c, image: i, ports: [{name: http, containerPort: 80}]}]}\nstatus: {podIPs: [{ip: " +
			ip +
			"}]}\n"
	}
	admin.change(t, step{set: pod("here", "node-a", "10.244.1.3") + "---\n" + pod("there", "node-b", "10.244.2.3")})
	defer admin.change(t, step{delete: "Pod/default/here Pod/default/there NetworkPolicy/default/p"})
	agent := &asks{pods: map[string]bool{}}
	c, err := a.server.RESTConfig()
	check(t, err)
	c.Wrap(func(rt http.RoundTripper) http.RoundTripper { agent.RoundTripper = rt; return agent })
	client, err := kubeapi.New(c)
	check(t, err)
	from := follow(t, client, "node-a")
	const own, others = "spec.nodeName=node-a", "spec.nodeName!=,spec.nodeName!=node-a"
	const here, there = "here on node-amap[app:web] ", "there on node-bmap[app:web] "
	from.egress(t, "without a policy", here)
	policy := func(spec string) {
		admin.change(t, step{set: "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\nspec: " +
			spec + "\n"})
	}
	policy("{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}]}")
	from.egress(t, "with a policy", here+"policy p ")
	policy("{podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {}}]}]}")
	admin.change(t, step{delete: "Pod/default/there"})
	admin.change(t, step{set: pod("there", "node-b", "10.244.2.4")})
	agent.want(t, "with a policy for other Pods", own)
	policy("{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {}}]}]}")
	for limit := time.After(30 * time.Second); len(from.last.Pods) < 2; {
		select {
		case from.last = <-from.from:
			p := from.last.Policies[0]
			if len(p.Subject.Pods.Requirements) > 0 && p.Subject.Pods.Requirements[0].Values[0] == "web" &&
				len(from.last.Pods) < 2 {
				t.Fatal("the policy is there, and its peers are not")
			}
		case <-limit:
			t.Fatal("Pods of other nodes are not read")
		}
	}
	from.egress(t, "with a policy for own Pods", here+there+"policy p ")
	agent.want(t, "with a policy for own Pods", others, own)
	if ports := from.last.Pods[1].Ports; len(ports) != 1 || ports[0].Port != 80 {
		t.Errorf("ports of another node's Pod: %v", ports)
	}
	follow(t, a.agent(t), "").egress(t, "controller", "policy p ")
	admin.change(t, step{delete: "NetworkPolicy/default/p"})
	from.egress(t, "deleted", here)
}

// testClusterPolicies: ClusterNetworkPolicies are read once the server has the resource, in the
// preferred of its versions, also when the served versions change.
func testClusterPolicies(t *testing.T, a *api) {
	const definitions, name = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		"clusternetworkpolicies.policy.networking.k8s.io"
	client := a.client(t)
	from := follow(t, a.agent(t), "node-a")
	wants := func(what string, want ...int) {
		t.Helper()
		priorities := func() (list []int) {
			for _, p := range from.last.Policies {
				list = append(list, p.Priority)
			}
			return list
		}
		for limit := time.After(30 * time.Second); from.last == nil || !slices.Equal(priorities(), want); {
			select {
			case from.last = <-from.from:
			case <-limit:
				t.Fatalf("%s: wanted priorities %v, the last are %v", what, want, priorities())
			}
		}
	}
	wants("without the resource")
	versions := func(served map[string]bool) string {
		var list []string
		for _, v := range []string{"v1beta1", "v1alpha2"} {
			list = append(list,
				fmt.Sprintf(`{"name":%q,"served":%v,"storage":%v,"schema":{"openAPIV3Schema":{"type":"object",`+
					`"properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}`, v,
					served[v],
					v == "v1alpha2"))
		}
		return `"versions":[` + strings.Join(list, ",") + "]"
	}
	write(t, client, "POST", definitions, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",`+
		`"metadata":{"name":"`+name+`","annotations":{"api-approved.kubernetes.io":"unapproved, test"}},`+
		`"spec":{"group":"policy.networking.k8s.io","scope":"Cluster","names":{"kind":"ClusterNetworkPolicy",`+
		`"plural":"clusternetworkpolicies"},`+versions(map[string]bool{"v1alpha2": true})+`}}`)
	path := func(version string) string {
		return "/apis/policy.networking.k8s.io/" + version + "/clusternetworkpolicies"
	}
	served := func(version string) {
		t.Helper()
		eventually(t, 30*time.Second, func() string {
			_, err := client.CoreV1().RESTClient().Get().AbsPath(path(version)).DoRaw(t.Context())
			if err != nil {
				return err.Error()
			}
			return ""
		})
	}
	served("v1alpha2")
	write(t, client, "POST", path("v1alpha2"), `{"apiVersion":"policy.networking.k8s.io/v1alpha2",`+
		`"kind":"ClusterNetworkPolicy","metadata":{"name":"p"},"spec":{"tier":"Admin","priority":7,"subject":{"namespaces":{}}}}`)
	wants("in version v1alpha2", 7)
	w, late := lateFollow(t, a, &gate{})
	s := &started{t: t, from: late.from}
	kube{client}.change(t, step{set: fmt.Sprintf(newPodText, "before")})
	s.until("before", "")
	w.late.Store(true)
	write(t, client, "PATCH", path("v1alpha2")+"/p", `{"spec":{"priority":6}}`)
	kube{client}.change(t, step{set: fmt.Sprintf(newPodText, "new")})
	s.absent("new", 500*time.Millisecond)
	w.late.Store(false)
	s.until("new", "")
	if p := s.last.Policies[0].Priority; p != 6 {
		t.Errorf("the first Snapshot with the Pod has priority %d of the policy before it", p)
	}
	kube{client}.change(t, step{delete: "Pod/default/before Pod/default/new"})
	write(t, client, "PATCH", definitions+"/"+name,
		`{"spec":{`+versions(map[string]bool{"v1alpha2": true, "v1beta1": true})+`}}`)
	served("v1beta1")
	write(t, client, "PATCH", definitions+"/"+name, `{"spec":{`+versions(map[string]bool{"v1beta1": true})+`}}`)
	write(t, client, "PATCH", path("v1beta1")+"/p", `{"spec":{"priority":8}}`)
	wants("in version v1beta1", 8)
	write(t, client, "DELETE", path("v1beta1")+"/p", "")
	wants("deleted")
	write(t, client, "POST", path("v1beta1"), `{"apiVersion":"policy.networking.k8s.io/v1beta1",`+
		`"kind":"ClusterNetworkPolicy","metadata":{"name":"q"},"spec":{"tier":"Admin","priority":9,"subject":{"namespaces":{}}}}`)
	wants("another one", 9)
	write(t, client, "DELETE", definitions+"/"+name, "")
	wants("without the resource again")
}

// testBeforePods: while the Pods that EgressIPs need cannot be read, the controller gets Snapshots
// of all else, with PodsUnread. An agent gets none. testEgress has installed the resource.
func testBeforePods(t *testing.T, a *api) {
	admin := a.client(t)
	pod := decode("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {nodeName: node-b, containers: [{name: " +
		"c, image: i}]}\nstatus: {podIPs: [{ip: 10.244.2.3}]}\n")
	check(t, kube{admin}.apply(t, pod))
	defer func() { kube{admin}.change(t, step{delete: "Pod/default/web Node/late"}) }()
	for _, name := range []string{"e", "f"} {
		write(t, admin, "POST", watch.EgressIPPath(),
			`{"apiVersion":"k8s.ovn.org/v1","kind":"EgressIP","metadata":{"name":"`+name+
				`"},"spec":{"egressIPs":["10.0.0.9"],"namespaceSelector":{}}}`)
		defer write(t, admin, "DELETE", watch.EgressIPPath()+"/"+name, "")
	}
	write(t, admin, "PATCH", watch.EgressIPPath()+"/e/status",
		`{"status":{"items":[{"node":"node-a","egressIP":"10.0.0.9"}]}}`)
	held := func(node, selector string) (*hold, *newest) {
		h := &hold{resource: "pods", selector: selector, open: make(chan struct{}), asked: map[string]bool{}}
		c, err := a.server.RESTConfig()
		check(t, err)
		c.Wrap(func(rt http.RoundTripper) http.RoundTripper { h.RoundTripper = rt; return h })
		client, err := kubeapi.New(c)
		check(t, err)
		return h, follow(t, client, node)
	}
	ofController, controller := held("", "spec.nodeName!=")
	ofAgent, agent := held("node-a", "spec.nodeName!=,spec.nodeName!=node-a")
	const all = "e[10.0.0.9][{10.0.0.9 node-a}] f[10.0.0.9][] "
	controller.egress(t, "before Pods", all+"and Pods that are not read yet")
	// else a controller assigns one, which a retry must not use
	kube{admin}.change(t,
		step{set: "apiVersion: v1\nkind: Node\nmetadata: {name: late}\nspec: {podCIDR: 10.244.9.0/24, " +
			"podCIDRs: [10.244.9.0/24]}\n"})
	for limit := time.After(30 * time.Second); controller.last.Node("late") == nil; {
		select {
		case controller.last = <-controller.from:
		case <-limit:
			t.Fatal("before Pods are read, a new Node is not told")
		}
	}
	controller.egress(t, "with a new Node", all+"and Pods that are not read yet")
	agent.silent(t, "Pods of others are not read yet")
	close(ofController.open)
	controller.egress(t, "with Pods", all+"web on node-bmap[] ")
	close(ofAgent.open)
	agent.egress(t, "with Pods", all+"web on node-bmap[] ")
}

func (n *newest) egress(t *testing.T, what, want string) {
	t.Helper()
	for limit := time.After(30 * time.Second); ; {
		if n.last != nil && egress(n.last) == want {
			return
		}
		select {
		case n.last = <-n.from:
		case <-limit:
			t.Fatalf("%s: wanted %s, last is %s", what, want, egress(n.last))
		}
	}
}

// define installs the resource definition and waits until it is served.
func define(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	text, err := os.ReadFile("../charts/hairpin/crds/egressips.yaml")
	check(t, err)
	text, err = yaml.YAMLToJSON(text)
	check(t, err)
	write(t, client, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", string(text))
	eventually(t, 30*time.Second, func() string {
		var list v1.EgressIPList
		text, err := client.CoreV1().RESTClient().Get().AbsPath(watch.EgressIPPath()).SetHeader("Accept",
			"application/json").DoRaw(t.Context())
		if err != nil {
			return err.Error()
		}
		check(t, json.Unmarshal(text, &list))
		return ""
	})
}

func write(t *testing.T, client kubernetes.Interface, verb, path, text string) {
	t.Helper()
	r := client.CoreV1().RESTClient().Verb(verb).AbsPath(path).SetHeader("Accept", "application/json")
	switch verb {
	case "PATCH":
		r = client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(path).SetHeader("Accept",
			"application/json")
		fallthrough
	case "POST":
		if verb == "POST" {
			r = r.SetHeader("Content-Type", "application/json")
		}
		r = r.Body([]byte(text))
	}
	_, err := r.DoRaw(t.Context())
	check(t, err)
}
