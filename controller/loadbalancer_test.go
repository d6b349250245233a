package controller_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"hairpin/api/v1alpha1"
	"hairpin/cluster/annotation"
	"hairpin/watch"
)

// definePools installs the resource definition of the chart.
func definePools(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	text, err := os.ReadFile("../charts/hairpin/crds/loadbalancerpools.yaml")
	noError(t, err)
	define(t, client, text, watch.PoolPath())
}

// createPool creates a LoadBalancerPool; ranges and more are JSON.
func createPool(t *testing.T, client kubernetes.Interface, name, ranges, more string) error {
	t.Helper()
	text, err := raw(t, client, "POST", watch.PoolPath(),
		`{"apiVersion":"hairpin.dev/v1alpha1","kind":"LoadBalancerPool","metadata":{"name":"`+name+
			`"},"spec":{"ranges":[`+ranges+`]`+more+`}}`)
	if err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	return nil
}

// createBalancer creates a Service of type LoadBalancer of the class hairpin.dev/l2.
func createBalancer(t *testing.T, client kubernetes.Interface, name string, edits ...func(*corev1.Service)) {
	t.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: new("hairpin.dev/l2"),
			Ports: []corev1.ServicePort{{Port: 80}}}}
	for _, edit := range edits {
		edit(s)
	}
	_, err := client.CoreV1().Services("default").Create(t.Context(), s, metav1.CreateOptions{})
	noError(t, err)
}

// balanced returns the addresses and the condition of a Service: "172.18.0.50 True Allocated".
func balanced(t *testing.T, client kubernetes.Interface, name string) string {
	t.Helper()
	s, err := client.CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{})
	noError(t, err)
	var words []string
	for _, in := range s.Status.LoadBalancer.Ingress {
		words = append(words, in.IP)
	}
	for _, c := range s.Status.Conditions {
		words = append(words, c.Type, string(c.Status), c.Reason)
	}
	return strings.ReplaceAll(strings.Join(words, " "), v1alpha1.ConditionAddress+" ", "")
}

// hasEvent waits for an Event on a Service.
func hasEvent(t *testing.T, client kubernetes.Interface, name, reason, says string) {
	t.Helper()
	soon(t, 30*time.Second, func() string {
		list, err := client.CoreV1().Events("default").List(t.Context(),
			metav1.ListOptions{FieldSelector: "reason=" + reason})
		noError(t, err)
		for _, e := range list.Items {
			if strings.Contains(e.Message, says) && e.InvolvedObject.Name == name && e.InvolvedObject.UID != "" {
				return ""
			}
		}
		return fmt.Sprintf("no event: %v", list.Items)
	})
}

// poolOf returns a pool.
func poolOf(t *testing.T, client kubernetes.Interface, name string) (p v1alpha1.LoadBalancerPool) {
	t.Helper()
	text, err := raw(t, client, "GET", watch.PoolPath()+"/"+name, "")
	noError(t, err)
	noError(t, json.Unmarshal(text, &p))
	return p
}

// previous returns the previous nodes of the first address of a pool.
func previous(t *testing.T, client kubernetes.Interface, name string) string {
	t.Helper()
	var nodes []string
	for _, p := range poolOf(t, client, name).Status.Addresses[0].Previous {
		nodes = append(nodes, p.Node)
		if left := time.Until(p.Until.Time); left < 3*time.Minute || left > 5*time.Minute {
			t.Error(p.Node, "is a previous node for another", left)
		}
	}
	return strings.Join(nodes, " ")
}

// poolStatus returns the status of a pool: "172.18.0.50 default/x on a; 1 used, 9 free".
func poolStatus(t *testing.T, client kubernetes.Interface, name string) string {
	t.Helper()
	p := poolOf(t, client, name)
	var words []string
	for _, x := range p.Status.Addresses {
		on := "on " + x.Node
		if x.Node == "" {
			on = "on none: " + x.Message
		}
		slices.Sort(x.Services) // they are of one second
		words = append(words, x.Address+" "+strings.Join(x.Services, ",")+" "+on)
	}
	words = append(words, fmt.Sprintf("%d used, %d free", p.Status.InUse, p.Status.Available))
	for _, c := range p.Status.Conditions {
		words = append(words, fmt.Sprintf("%s=%s", c.Type, c.Status))
	}
	return strings.Join(words, "; ")
}

// TestControllerLoadBalancers checks pools, addresses and announcing nodes on a real API server.
func TestControllerLoadBalancers(t *testing.T) {
	p := startControlPlane(t)
	c := p.client
	definePools(t, c)
	for _, x := range []struct{ ranges, says string }{
		{`"192.0.2.1"`, "each must be a prefix"},
		{`"192.0.2.1/24"`, "must begin with its first address"},
		{`"192.0.2.1-fd10::1"`, "must be of one family"},
		{`"192.0.2.1-host"`, "each must be a prefix"},
		{``, "should have at least 1 items"},
	} {
		if err := createPool(t, c, "bad", x.ranges, ""); err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: the server says %v, not %q", x.ranges, err, x.says)
		}
	}
	stop := candidate(t, p.own, "one")
	is := func(of func(*testing.T, kubernetes.Interface, string) string, name, want string) {
		t.Helper()
		begin := time.Now()
		soon(t, 30*time.Second, func() string {
			if got := of(t, c, name); got != want {
				return name + " is " + got + ", not " + want
			}
			return ""
		})
		t.Logf("%s: %s after %s", name, want, time.Since(begin).Round(time.Millisecond))
	}
	const has, valid = " True Allocated", "; RangesValid=True; AddressesAvailable=True"
	createBalancer(t, c, "x")
	is(balanced, "x", "False NoLoadBalancerPool")
	noError(t, createPool(t, c, "edge", `"172.18.0.1-172.18.0.5","172.18.0.50/31"`, ""))
	is(balanced, "x", "172.18.0.1"+has) // no node is known yet
	addCarrier(t, c, "a", "172.18.0.3")
	is(poolStatus, "edge", "172.18.0.1 default/x on a; 1 used, 5 free"+valid)
	addCarrier(t, c, "b", "172.18.0.4")
	p.wantIDs(t, 20*time.Second, "a=1 b=2")
	createBalancer(t, c, "y", func(s *corev1.Service) {
		s.Annotations[v1alpha1.AnnotationAddresses] = "172.18.0.51"
	})
	is(balanced, "y", "172.18.0.51"+has)
	createBalancer(t, c, "z")
	is(balanced, "z", "172.18.0.2"+has)
	for name, address := range map[string]string{"thief": "172.18.0.51", "node": "172.18.0.4", "cluster": "10.96.0.1",
		"outside": "8.8.8.8"} {
		createBalancer(t, c, name, func(s *corev1.Service) { s.Annotations[v1alpha1.AnnotationAddresses] = address })
		is(balanced, name, "False AddressNotAvailable")
	}
	hasEvent(t, c, "thief", "AddressNotAvailable", "172.18.0.51 is an address of Service/default/y")
	before := poolStatus(t, c, "edge")

	// Another leader changes nothing.
	stop()
	stop = candidate(t, p.own, "two")
	defer stop()
	for _, edit := range []func(*corev1.Service){
		func(s *corev1.Service) { s.Annotations[v1alpha1.AnnotationSharing] = "k" },
		func(s *corev1.Service) {
			s.Annotations[v1alpha1.AnnotationSharing], s.Spec.Ports[0].Port = "k", 81
			s.Name = "mate"
		},
	} {
		createBalancer(t, c, "shared", edit)
	}
	is(balanced, "shared", "172.18.0.5"+has)
	is(balanced, "mate", "172.18.0.5"+has)
	first, _, _ := strings.Cut(before, "172.18.0.51")
	soon(t, 30*time.Second, func() string { // the pool's status is written after those of Services
		if got := poolStatus(t, c, "edge"); !strings.HasPrefix(got, first) ||
			!strings.Contains(got, "default/mate,default/shared") {
			return got + ", and it was " + before
		}
		return ""
	})

	// A node that leaves gives its addresses away; an address without a node has a reason.
	_, err := c.CoreV1().Nodes().Patch(t.Context(), "a", types.MergePatchType,
		[]byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	noError(t, err)
	on := func(node string) {
		t.Helper()
		is(poolStatus, "edge", "172.18.0.1 default/x on "+node+"; 172.18.0.2 default/z on "+node+
			"; 172.18.0.5 default/mate,default/shared on "+node+"; 172.18.0.51 default/y on "+node+"; 4 used, 1 free"+
			valid)
	}
	on("b")
	is(previous, "edge", "a")
	_, err = raw(t, c, "PATCH", watch.PoolPath()+"/edge", `{"spec":{"nodeSelector":{"matchLabels":{"edge":"yes"}}}}`)
	noError(t, err)
	soon(t, 30*time.Second, func() string {
		got := poolStatus(t, c, "edge")
		if strings.Count(got, "spec.nodeSelector of its pool selects none") == 4 {
			return ""
		}
		return got
	})
	is(previous, "edge", "b a")
	_, err = c.CoreV1().Nodes().Patch(t.Context(), "a", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"edge":"yes"}}}`), metav1.PatchOptions{})
	noError(t, err)
	on("a") // it is cordoned, and there is no other
	is(previous, "edge", "b")

	// What is deleted is free.
	for _, name := range []string{"y", "z"} {
		noError(t, c.CoreV1().Services("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	is(balanced, "thief", "172.18.0.51"+has)
	_, err = raw(t, c, "DELETE", watch.PoolPath()+"/edge", "")
	noError(t, err)
	is(balanced, "x", "False NoLoadBalancerPool")
	t.Run("addresses of nodes", func(t *testing.T) { controllerNodeAddresses(t, c, is) })
}

// controllerNodeAddresses checks a pool of the addresses of the nodes a, which is cordoned, and b.
func controllerNodeAddresses(t *testing.T, c kubernetes.Interface,
	is func(of func(*testing.T, kubernetes.Interface, string) string, name, want string)) {
	create := func(spec string) error {
		text, err := raw(t, c, "POST", watch.PoolPath(),
			`{"apiVersion":"hairpin.dev/v1alpha1","kind":"LoadBalancerPool","metadata":{"name":"own"},"spec":{`+spec+`}}`)
		if err != nil {
			return fmt.Errorf("%w: %s", err, text)
		}
		return nil
	}
	const selects = `,"serviceSelector":{"matchLabels":{"own":"yes"}}`
	for _, x := range []struct{ spec, says string }{
		{``, "either ranges or nodeAddresses is required"},
		{`"ranges":["192.0.2.0/24"],"nodeAddresses":{"ports":["80"]}`, "either ranges or nodeAddresses is required"},
		{`"nodeAddresses":{}`, "spec.nodeAddresses.ports: Required value"},
		{`"nodeAddresses":{"ports":[]}`, "should have at least 1 items"},
		{`"nodeAddresses":{"ports":["0"]}`, "should match"},
		{`"nodeAddresses":{"ports":["http"]}`, "should match"},
		{`"nodeAddresses":{"ports":["65536"]}`, "each must be a port"},
		{`"nodeAddresses":{"ports":["90-80"]}`, "each must be a port"},
		{`"nodeAddresses":{"ports":["22","80-443","10250","30000-32767"]}` + selects, ""},
	} {
		if err := create(x.spec); x.says == "" && err != nil || x.says != "" && (err == nil ||
			!strings.Contains(err.Error(), x.says)) {
			t.Errorf("%s: the server says %v, not %q", x.spec, err, x.says)
		}
	}
	balancer := func(name string, ports ...int32) {
		t.Helper()
		createBalancer(t, c, name, func(s *corev1.Service) {
			s.Labels, s.Spec.Ports = map[string]string{"own": "yes"}, nil
			for _, n := range ports {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", n), Port: n})
			}
		})
	}
	// "172.18.0.4: 80 443!" with the ports that are recorded, "!" after those with an error
	ports := func(t *testing.T, c kubernetes.Interface, name string) string {
		t.Helper()
		s, err := c.CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{})
		noError(t, err)
		var words []string
		for _, in := range s.Status.LoadBalancer.Ingress {
			words = append(words, in.IP+":")
			for _, p := range in.Ports {
				word := fmt.Sprint(p.Port)
				if p.Error != nil {
					word += "!"
				}
				words = append(words, word)
			}
		}
		return strings.Join(words, " ")
	}
	const has, refused = " True Allocated", "False PortNotAvailable"
	balancer("web", 80, 443)
	is(balanced, "web", "172.18.0.4"+has)
	is(ports, "web", "172.18.0.4: 80 443")
	is(poolStatus, "own", "172.18.0.4 default/web on b; 1 used, 2 free; RangesValid=True; AddressesAvailable=True")
	balancer("host", 22, 10250)
	is(balanced, "host", refused)
	balancer("twin", 443)
	is(balanced, "twin", refused)
	balancer("listed", 8080)
	is(balanced, "listed", refused)

	// An older Service that adds a port takes none from a younger one, and keeps its own.
	balancer("young", 81)
	is(ports, "young", "172.18.0.4: 81")
	_, err := c.CoreV1().Services("default").Patch(t.Context(), "web", types.JSONPatchType, []byte(
		`[{"op":"add","path":"/spec/ports/-","value":{"name":"p81","port":81}}]`), metav1.PatchOptions{})
	noError(t, err)
	is(ports, "web", "172.18.0.4: 80 81! 443")
	is(balanced, "web", "172.18.0.4 "+refused)
	is(ports, "young", "172.18.0.4: 81")

	// A node that is not cordoned is listed, too. There one of several Services gets each port: the
	// oldest, if it is older by a second. A released port is free.
	_, err = c.CoreV1().Nodes().Patch(t.Context(), "a", types.MergePatchType,
		[]byte(`{"spec":{"unschedulable":false}}`), metav1.PatchOptions{})
	noError(t, err)
	served := func(t *testing.T, c kubernetes.Interface, node string) string {
		t.Helper()
		var words []string
		for _, name := range []string{"web", "twin", "young"} {
			_, at, _ := strings.Cut(ports(t, c, name), node+": ")
			at, _, _ = strings.Cut(at, " 172.18.")
			words = append(words, strings.Fields(at)...)
		}
		words = slices.DeleteFunc(words, func(w string) bool { return strings.HasSuffix(w, "!") })
		slices.Sort(words)
		return strings.Join(words, " ")
	}
	is(served, "172.18.0.3", "443 80 81")
	noError(t, c.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}))
	is(ports, "young", "172.18.0.3: 81 172.18.0.4: 81")
	is(balanced, "twin", "172.18.0.3 172.18.0.4"+has)

	// The agent of a ready node reports no ports: the Service is served at the other node, if there
	// is one, and the reason is reported.
	nodes := c.CoreV1().Nodes()
	for _, x := range []struct{ node, service, has string }{{"b", "late", "172.18.0.3 "}, {"a", "later", ""}} {
		_, err = nodes.Patch(t.Context(), x.node, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, annotation.HostPorts), metav1.PatchOptions{})
		noError(t, err)
		balancer(x.service, 82)
		is(balanced, x.service, x.has+"False PortNotReported")
		hasEvent(t, c, x.service, "PortNotReported", "node b has not reported whether its host uses tcp port 82 of 172.18.0.4")
		noError(t, c.CoreV1().Services("default").Delete(t.Context(), x.service, metav1.DeleteOptions{}))
	}
	_, err = raw(t, c, "DELETE", watch.PoolPath()+"/own", "")
	noError(t, err)
	is(balanced, "twin", "False NoLoadBalancerPool")
}
