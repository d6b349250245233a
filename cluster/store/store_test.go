package store_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hairpin/cluster"
	"hairpin/cluster/store"
)

func names(s *cluster.Snapshot) []string {
	var out []string
	for _, f := range s.Frontends {
		out = append(out, f.Owner.Name)
	}
	return out
}

// TestUnchangedStaysTheSame: unchanged values keep their pointers between Snapshots, and an earlier
// Snapshot does not change.
func TestUnchangedStaysTheSame(t *testing.T) {
	p80 := endpointPort("", tcp, 8080)
	s := storeOf(node("node-a", good), pod("p", "node-a", "10.244.1.5"), pod("q", "node-a", "10.244.1.6"),
		service("a", "10.96.0.1"), service("b", "10.96.0.2"), service("c", "10.96.0.3"),
		slice("b-1", "b", p80, "10.244.1.5"), slice("c-1", "nobody", p80))
	first := s.Snapshot()
	before := describe(first)

	s.Set(service("a", "10.96.0.1"))
	s.Set(slice("b-1", "b", p80, "10.244.1.5"))
	s.Set(pod("p", "node-a", "10.244.1.5"))
	s.Set(node("node-a", good, func(n *corev1.Node) {
		n.ResourceVersion = "99"
		n.Status.Images = []corev1.ContainerImage{{SizeBytes: 1}}
	}))
	s.Set(&corev1.Secret{})
	s.Delete(service("nobody", ""))
	s.Delete(slice("nothing", "b", p80))
	s.Delete(pod("nothing", ""))
	if s.Snapshot() != first {
		t.Errorf("nothing changed, and there is another Snapshot")
	}

	s.Set(slice("b-1", "b", p80, "10.244.1.6"))
	s.Set(pod("q", "node-a", "10.244.1.7"))
	second := s.Snapshot()
	if second == first {
		t.Fatal("something changed, and the Snapshot is the same")
	}
	for i, same := range []bool{true, false, true} {
		if (first.Frontends[i] == second.Frontends[i]) != same {
			t.Errorf("frontend %s: same is %v", first.Frontends[i].Key(), !same)
		}
	}
	if first.Pods[0] != second.Pods[0] || first.Pods[1] == second.Pods[1] || first.Nodes[0] != second.Nodes[0] {
		t.Error("pods or nodes are other pointers")
	}
	s.Delete(service("a", ""))
	s.Delete(node("node-a"))
	third := s.Snapshot()
	if got := names(third); !slices.Equal(got, []string{"b", "c"}) || len(third.Nodes) != 0 {
		t.Errorf("left are %v, %d nodes", got, len(third.Nodes))
	}
	if third.Frontends[0] != second.Frontends[1] || third.Frontends[1] != first.Frontends[2] {
		t.Error("what is left are other pointers")
	}
	if got := describe(first); !slices.Equal(got, before) || len(first.Nodes) != 1 {
		t.Errorf("the first Snapshot became %v", got)
	}
}

// TestAppendToSnapshotList: a reader may append to a list of its Snapshot.
func TestAppendToSnapshotList(t *testing.T) {
	s := storeOf(service("a", "10.96.0.1"), service("b", "10.96.0.2", ports()))
	s.Set(service("c", "10.96.0.3", ports()))
	first := s.Snapshot()
	one := append(first.Problems, cluster.Problem{Message: "one"})
	two := append(first.Problems, cluster.Problem{Message: "two"})
	if one[2].Message != "one" || two[2].Message != "two" {
		t.Errorf("got %v and %v", one, two)
	}
}

func TestSlicesComeAndGo(t *testing.T) {
	p80 := endpointPort("", tcp, 8080)
	orphan := "EndpointSlice/default/s: metadata.labels[kubernetes.io/service-name]: there is no Service/default/"
	s := storeOf(slice("s", "web", p80, "10.244.0.5"))
	want(t, s.Snapshot(), orphan+"web")
	s.Set(service("web", "10.96.0.1"))
	s.Set(service("db", "10.96.0.2"))
	want(t, s.Snapshot(), "db 10.96.0.2:80/tcp →", "web 10.96.0.1:80/tcp → 10.244.0.5:8080")

	s.Set(slice("s", "db", p80, "10.244.0.5")) // its label names another Service
	want(t, s.Snapshot(), "db 10.96.0.2:80/tcp → 10.244.0.5:8080", "web 10.96.0.1:80/tcp →")
	s.Set(slice("s", "", p80, "10.244.0.5")) // none
	want(t, s.Snapshot(), "db 10.96.0.2:80/tcp →", "web 10.96.0.1:80/tcp →",
		"EndpointSlice/default/s: metadata.labels[kubernetes.io/service-name]: names no Service, so "+
			"the slice serves none")
	s.Set(slice("s", "db", p80, "10.244.0.5")) // back
	want(t, s.Snapshot(), "db 10.96.0.2:80/tcp → 10.244.0.5:8080", "web 10.96.0.1:80/tcp →")

	s.Delete(service("db", "")) // the slice outlives its Service
	want(t, s.Snapshot(), "web 10.96.0.1:80/tcp →", orphan+"db")
	s.Delete(slice("s", "anything", p80)) // a tombstone has only the name
	want(t, s.Snapshot(), "web 10.96.0.1:80/tcp →")
	s.Set(service("db", "10.96.0.2"))
	want(t, s.Snapshot(), "db 10.96.0.2:80/tcp →", "web 10.96.0.1:80/tcp →")
}

// After a Service is deleted, Kubernetes deletes its slices, which takes seconds. These are no
// problem to report. One that remains for ever, because no object owns it, is.
func TestSliceOfDeletedService(t *testing.T) {
	owned := func(kind, name string) *discoveryv1.EndpointSlice {
		return edited(slice("s", "web", endpointPort("", tcp, 8080), "10.244.0.5"), func(s *discoveryv1.EndpointSlice) {
			s.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, UID: "u"}}
		})
	}
	const orphan = "EndpointSlice/default/s: metadata.labels[kubernetes.io/service-name]: there is no Service/default/web"
	for _, c := range []struct {
		kind, name string
		want       []string
	}{
		{"Service", "web", nil}, {"Endpoints", "web", nil}, // the latter: of the slices that mirror it
		{"Service", "db", []string{orphan}}, {"Database", "web", []string{orphan}},
	} {
		s := storeOf(service("web", "10.96.0.1", func(s *corev1.Service) { s.UID = "u" }), owned(c.kind, c.name))
		want(t, s.Snapshot(), "web 10.96.0.1:80/tcp → 10.244.0.5:8080")
		s.Delete(service("web", ""))
		want(t, s.Snapshot(), c.want...)
	}
}

// A Service that was created again does not get the endpoints of the former one, of which slices
// may remain for seconds.
func TestSliceOfFormerService(t *testing.T) {
	made := func(uid types.UID) func(*corev1.Service) { return func(s *corev1.Service) { s.UID = uid } }
	of := func(name string, uid types.UID, address string) *discoveryv1.EndpointSlice {
		return edited(slice(name, "web", endpointPort("", tcp, 8080), address), func(s *discoveryv1.EndpointSlice) {
			s.OwnerReferences = []metav1.OwnerReference{{Kind: "Service", Name: "web", UID: uid}}
		})
	}
	s := storeOf(service("web", "10.96.0.1", made("former")), of("web-1", "former", "10.244.0.5"))
	want(t, s.Snapshot(), "web 10.96.0.1:80/tcp → 10.244.0.5:8080")
	s.Set(service("web", "10.96.0.2", made("new")))
	want(t, s.Snapshot(), "web 10.96.0.2:80/tcp →")
	s.Set(of("web-2", "new", "10.244.0.6"))
	s.Set(slice("by-hand", "web", endpointPort("", tcp, 8080), "10.244.0.7"))
	want(t, s.Snapshot(), "web 10.96.0.2:80/tcp → 10.244.0.6:8080 10.244.0.7:8080")
}

func TestProblemsGoWhenTheObjectIsGood(t *testing.T) {
	s := storeOf(service("web", "10.96.0.1", ports()), slice("s", "web", endpointPort("", tcp, 0)), pod("p", "n", "x"),
		node("n", addresses("x")))
	if got := len(s.Snapshot().Problems); got != 4 {
		t.Errorf("%d problems: %v", got, s.Snapshot().Problems)
	}
	s.Set(service("web", "10.96.0.1"))
	s.Set(edited(slice("s", "web", endpointPort("", tcp, 8080)),
		func(s *discoveryv1.EndpointSlice) { s.Annotations = nil }))
	s.Set(pod("p", "n", "10.244.0.5"))
	s.Delete(node("n"))
	want(t, s.Snapshot(), "web 10.96.0.1:80/tcp →")
}

// TestEqualityReadsEveryField changes one field of a Frontend or Backend after the other. A change
// of a field that equality ignores would go unnoticed.
func TestEqualityReadsEveryField(t *testing.T) {
	base := func() cluster.Frontend { return cluster.Frontend{Backends: []cluster.Backend{{}}} }
	check := func(name string, change func(*cluster.Frontend)) {
		f, g := base(), base()
		if !store.EqualFrontends(&f, &g) {
			t.Fatal("equal Frontends are not equal")
		}
		change(&g)
		if store.EqualFrontends(&f, &g) {
			t.Errorf("Frontends that differ in %s are equal", name)
		}
	}
	for i := range reflect.TypeFor[cluster.Frontend]().NumField() {
		check(reflect.TypeFor[cluster.Frontend]().Field(i).Name,
			func(f *cluster.Frontend) { alter(t, reflect.ValueOf(f).Elem().Field(i)) })
	}
	for i := range reflect.TypeFor[cluster.Backend]().NumField() {
		check("Backends."+reflect.TypeFor[cluster.Backend]().Field(i).Name,
			func(f *cluster.Frontend) { alter(t, reflect.ValueOf(&f.Backends[0]).Elem().Field(i)) })
	}
}

// alter gives a field another value than the zero value.
func alter(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("x")
	case reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		v.SetUint(1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), v.Len()+1, v.Len()+1))
	case reflect.Struct:
		switch v.Interface().(type) {
		case cluster.Owner:
			v.Set(reflect.ValueOf(cluster.Owner{Name: "x"}))
		default: // netip.Addr, time.Time
			v.Set(reflect.ValueOf(map[string]any{
				"netip.Addr": addrs("10.0.0.1")[0], "time.Time": time.Unix(1, 0),
			}[v.Type().String()]))
		}
	default:
		t.Fatalf("a field of kind %s: teach this test", v.Kind())
	}
}
