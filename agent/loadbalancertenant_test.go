package agent_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"hairpin/api/v1alpha1"
	"hairpin/lab"
	"hairpin/lab/demo"
	"hairpin/lab/probe"
	"hairpin/watch"
)

// tenantAsks: a tenant with the role edit asks for another Service's address, for a node's, the
// gateway's and an EgressIP's, by every field that it may write, while the victims have traffic. No
// connection of theirs fails, no neighbor changes, and the tenant answers nowhere.
func tenantAsks(t *testing.T, g *demo.Egress) {
	ctx := t.Context()
	noError(t, g.Label(ctx, demo.EgressDies, false))
	defer func() { noError(t, g.Label(ctx, demo.EgressDies, true)) }()
	p, err := g.Pooled(ctx, "172.18.0.55")
	noError(t, err)
	noError(t, p.Nodes(ctx, demo.EgressStays))
	l := g.Demo().Lab()
	server, err := lab.OpenAPIServer(l.APIServerDir())
	noError(t, err)
	config, err := server.RESTConfig()
	noError(t, err)
	config.WarningHandlerWithContext, config.QPS = rest.NoWarnings{}, -1
	admin, err := kubernetes.NewForConfig(config)
	noError(t, err)
	noError(t, admin.CoreV1().RESTClient().Post().AbsPath(watch.PoolPath()).Body(fmt.Appendf(nil,
		`{"apiVersion":%q,"kind":"LoadBalancerPool","metadata":{"name":"wide"},"spec":{"ranges":["172.18.0.0-172.18.0.54",`+
			`"172.18.0.56-172.18.0.255"]}}`, v1alpha1.GroupVersion().String())).Do(ctx).Error())
	_, err = admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}},
		metav1.CreateOptions{})
	noError(t, err)
	_, err = admin.RbacV1().RoleBindings("tenant").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "tenant"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "tenant"}},
	}, metav1.CreateOptions{})
	noError(t, err)
	config.Impersonate = rest.ImpersonationConfig{UserName: "tenant", Groups: []string{"system:authenticated"}}
	tenant, err := kubernetes.NewForConfig(config)
	noError(t, err)
	attacker, err := admin.CoreV1().Pods("default").Get(ctx, "pod-c2", metav1.GetOptions{})
	noError(t, err)

	victims := []string{"172.18.0.55", egressAddress, "172.18.0.4", "172.18.0.1"}
	client := l.Host("client")
	neighbors := func() map[string]string {
		t.Helper()
		has := map[string]string{}
		for _, a := range victims {
			// resolves the neighbor, also where nothing answers
			lab.Get(ctx, client, probe.Request{Protocol: "tcp", To: netip.AddrPortFrom(netip.MustParseAddr(a), 80),
				Timeout: time.Second})
			line, err := client.Exec(ctx, "ip", "neighbor", "show", "to", a)
			noError(t, err)
			has[a] = ""
			if f := strings.Fields(line); slices.Contains(f, "lladdr") {
				has[a] = f[slices.Index(f, "lladdr")+1]
			}
		}
		return has
	}
	before := neighbors()
	ends := withConnections(t, client, []string{"172.18.0.55"}, 80)
	stop := g.Connect(ctx, 10*time.Millisecond, 5*time.Second) // of the pod with the EgressIP

	for i, a := range victims {
		for how, edit := range map[string]func(*corev1.Service){
			"annotation": func(s *corev1.Service) {
				s.Annotations = map[string]string{v1alpha1.AnnotationAddresses: a, v1alpha1.AnnotationSharing: "key"}
			},
			"field": func(s *corev1.Service) { s.Spec.LoadBalancerIP = a },
			"external": func(s *corev1.Service) {
				s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil
				s.Spec.ExternalIPs = []string{a}
			},
		} {
			if how == "external" && i > 1 {
				continue // up to external-ip-ranges
			}
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", how, i)},
				Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: new("hairpin.dev/l2"),
					Ports: []corev1.ServicePort{{Name: "same", Port: 80}, {Name: "other", Port: 81}}}}
			edit(s)
			_, err := tenant.CoreV1().Services("tenant").Create(ctx, s, metav1.CreateOptions{})
			noError(t, err)
			_, err = admin.DiscoveryV1().EndpointSlices("tenant").Create(ctx, &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Name: s.Name,
					Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}},
				AddressType: discoveryv1.AddressTypeIPv4,
				Ports: []discoveryv1.EndpointPort{{Name: new("same"), Port: new(int32(8080)),
					Protocol: new(corev1.ProtocolTCP)}, {Name: new("other"), Port: new(int32(8080)),
					Protocol: new(corev1.ProtocolTCP)}},
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{attacker.Status.PodIP},
					NodeName: &attacker.Spec.NodeName}},
			}, metav1.CreateOptions{})
			noError(t, err)
		}
	}
	eventually(t, 30*time.Second, "the controller has refused all", func() (bool, string) {
		list, err := tenant.CoreV1().Services("tenant").List(ctx, metav1.ListOptions{})
		noError(t, err)
		refused := 0
		for i := range list.Items {
			for _, c := range list.Items[i].Status.Conditions {
				if c.Type == v1alpha1.ConditionAddress && c.Reason == "AddressNotAvailable" {
					refused++
				}
			}
		}
		return refused == 2*len(victims), fmt.Sprint(refused, " of ", 2*len(victims))
	})
	ends()
	all := stop()
	wrongSource(t, egressAddress, all)
	if n, _ := failed(all); n > 0 {
		t.Errorf("of %d connections with the egress address %d failed", len(all), n)
	}
	if after := neighbors(); !maps.Equal(after, before) {
		t.Errorf("the neighbors are %v, and were %v", after, before)
	}
	for _, a := range victims {
		to := netip.AddrPortFrom(netip.MustParseAddr(a), 81)
		for _, from := range []lab.Place{client, g.Pod(), l.Node("node-a")} {
			answer := lab.Get(ctx, from, probe.Request{Protocol: "tcp", To: to, Timeout: time.Second})
			if answer.Error == "" {
				t.Errorf("the tenant answers %s at %s", from.Name(), to)
			}
		}
	}
}
