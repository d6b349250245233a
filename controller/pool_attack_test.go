package controller_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"hairpin/api/v1alpha1"
	"hairpin/watch"
)

// TestPoolAttacks: a tenant with the role edit in its namespace gets no address of a pool that is
// another Service's, a node's, the gateway's, a pod's or the cluster's, by no field that it may
// write. The victim keeps its address, and the node that announces it.
func TestPoolAttacks(t *testing.T) {
	p := startControlPlane(t)
	c := p.client
	definePools(t, c)
	defineEgressIPs(t, c, true)
	defer candidate(t, p.own, "one")()
	addCarrier(t, c, "a", "172.18.0.3")
	addCarrier(t, c, "b", "172.18.0.4")
	for name, last := range map[string]string{"a": "3", "b": "4"} {
		gateway := `{"default":{"mode":"shared","bridge-id":"br-ex","uplink":"eth0","mac-address":"02:42:ac:12:00:03",` +
			`"ip-addresses":["172.18.0.` + last + `/16"],"next-hops":["172.18.0.1"]}}`
		_, err := c.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, fmt.Appendf(nil,
			`{"metadata":{"annotations":{"k8s.ovn.org/l3-gateway-config":%q}}}`, gateway), metav1.PatchOptions{})
		noError(t, err)
	}
	// The pool has the whole network, and even ranges of the cluster.
	noError(t, createPool(t, c, "edge", `"172.18.0.0/24","10.244.0.0/24","10.96.0.0/28"`, ""))
	noError(t, createEgressIP(t, c, "owner", "172.18.0.33"))
	createBalancer(t, c, "victim", func(s *corev1.Service) {
		s.Annotations[v1alpha1.AnnotationAddresses], s.Annotations[v1alpha1.AnnotationSharing] = "172.18.0.50", "key"
	})
	const has = "172.18.0.50 True Allocated"
	soon(t, 30*time.Second, func() string {
		if got := balanced(t, c, "victim"); got != has {
			return "victim is " + got
		}
		return ""
	})
	var on string
	soon(t, 30*time.Second, func() string {
		status := poolStatus(t, c, "edge")
		_, after, _ := strings.Cut(status, "172.18.0.50 default/victim on ")
		if on, _, _ = strings.Cut(after, ";"); on != "a" && on != "b" {
			return status
		}
		return ""
	})

	tenant := asTenant(t, p)
	create := func(name string, edit func(*corev1.Service)) *corev1.Service {
		t.Helper()
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: new("hairpin.dev/l2"),
				Ports: []corev1.ServicePort{{Port: 81}}}}
		edit(s)
		s, err := tenant.CoreV1().Services("tenant").Create(t.Context(), s, metav1.CreateOptions{})
		noError(t, err)
		return s
	}
	refused := func(name string) {
		t.Helper()
		soon(t, 30*time.Second, func() string {
			s, err := c.CoreV1().Services("tenant").Get(t.Context(), name, metav1.GetOptions{})
			noError(t, err)
			if len(s.Status.LoadBalancer.Ingress) > 0 {
				t.Errorf("%s has %v", name, s.Status.LoadBalancer.Ingress)
			}
			for _, x := range s.Status.Conditions {
				if x.Type == v1alpha1.ConditionAddress && x.Status == metav1.ConditionFalse &&
					x.Reason == "AddressNotAvailable" {
					return ""
				}
			}
			return fmt.Sprintf("%s has conditions %v", name, s.Status.Conditions)
		})
	}
	for what, address := range map[string]string{"another-service": "172.18.0.50", "node": "172.18.0.4",
		"gateway": "172.18.0.1", "egressip": "172.18.0.33", "network": "172.18.0.0", "pod": "10.244.0.9",
		"cluster-ip": "10.96.0.1"} {
		create("annotation-"+what, func(s *corev1.Service) {
			s.Annotations[v1alpha1.AnnotationAddresses], s.Annotations[v1alpha1.AnnotationSharing] = address, "key"
		})
		create("field-"+what, func(s *corev1.Service) { s.Spec.LoadBalancerIP = address })
		refused("annotation-" + what)
		refused("field-" + what)
	}
	create("external", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.LoadBalancerClass, s.Spec.ExternalIPs = corev1.ServiceTypeClusterIP, nil,
			[]string{"172.18.0.50"}
	})

	// The records of addresses are not a tenant's to write.
	status := `{"status":{"loadBalancer":{"ingress":[{"ip":"172.18.0.50"}]}}}`
	for what, path := range map[string]string{
		"the status of its Service":     "/api/v1/namespaces/tenant/services/field-node/status",
		"the pool":                      watch.PoolPath() + "/edge",
		"the status of the pool":        watch.PoolPath() + "/edge/status",
		"an EgressIP":                   watch.EgressIPPath() + "/owner",
		"the status of an EgressIP":     watch.EgressIPPath() + "/owner/status",
		"a Node":                        "/api/v1/nodes/a",
		"the status of another Service": "/api/v1/namespaces/default/services/victim/status",
	} {
		if _, err := raw(t, tenant, "PATCH", path, status); !apierrors.IsForbidden(err) {
			t.Errorf("a tenant writes %s: %v", what, err)
		}
	}
	// One that may write the status of its Services gets no address by that either.
	_, err := raw(t, c, "PATCH", "/api/v1/namespaces/tenant/services/field-node/status", status)
	noError(t, err)
	soon(t, 30*time.Second, func() string {
		s, err := c.CoreV1().Services("tenant").Get(t.Context(), "field-node", metav1.GetOptions{})
		noError(t, err)
		if list := s.Status.LoadBalancer.Ingress; slices.ContainsFunc(list,
			func(x corev1.LoadBalancerIngress) bool { return x.IP == "172.18.0.50" }) {
			return fmt.Sprint("field-node has ", list)
		}
		return ""
	})
	if got := balanced(t, c, "victim"); got != has {
		t.Errorf("the victim is %s", got)
	}
	if got := poolStatus(t, c, "edge"); !strings.HasPrefix(got, "172.18.0.50 default/victim on "+on+"; 1 used") {
		t.Errorf("the pool is %s", got)
	}
}

// createEgressIP creates an EgressIP for all pods.
func createEgressIP(t *testing.T, client kubernetes.Interface, name, address string) error {
	t.Helper()
	_, err := raw(t, client, "POST", watch.EgressIPPath(), `{"apiVersion":"k8s.ovn.org/v1","kind":"EgressIP",
		"metadata":{"name":"`+name+`"},"spec":{"egressIPs":["`+address+`"],"namespaceSelector":{}}}`)
	return err
}

// asTenant returns a client of a user with the role edit in the namespace tenant.
func asTenant(t *testing.T, p *controlPlane) kubernetes.Interface {
	t.Helper()
	_, err := p.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}}, metav1.CreateOptions{})
	noError(t, err)
	_, err = p.client.RbacV1().RoleBindings("tenant").Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "tenant"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "tenant"}},
	}, metav1.CreateOptions{})
	noError(t, err)
	config, err := p.server.RESTConfig()
	noError(t, err)
	config.Impersonate = rest.ImpersonationConfig{UserName: "tenant", Groups: []string{"system:authenticated"}}
	config.WarningHandlerWithContext, config.QPS = rest.NoWarnings{}, -1
	client, err := kubernetes.NewForConfig(config)
	noError(t, err)
	review := &authorizationv1.SelfSubjectAccessReview{}
	review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Namespace: "tenant", Verb: "create",
		Resource: "services"}
	reviews := client.AuthorizationV1().SelfSubjectAccessReviews()
	soon(t, 30*time.Second, func() string { // Kubernetes aggregates the role after it has started
		r, err := reviews.Create(t.Context(), review, metav1.CreateOptions{})
		noError(t, err)
		if !r.Status.Allowed {
			return "the tenant may not create Services: " + r.Status.Reason
		}
		return ""
	})
	return client
}
