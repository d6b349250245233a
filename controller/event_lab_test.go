package controller_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster"
	"hairpin/kube"
)

// TestLongEvent checks that a problem has an Event even if the API server cannot store its message,
// or rejects it as too long.
func TestLongEvent(t *testing.T) {
	p := startControlPlane(t)
	r := kube.NewEvents(p.own, "test", slog.New(slog.DiscardHandler))
	defer r.Stop()
	for name, message := range map[string]string{
		"long": strings.Repeat("wörd ", 2000), "odd": "is \x1b[2J\xff odd", "short": "is odd",
	} {
		_, err := p.client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		noError(t, err)
		problem := cluster.Problem{Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: name},
			Field: "spec.externalIPs[0]", Message: message}
		r.Report(time.Now(), []cluster.Problem{problem})
		r.Report(time.Now().Add(kube.Grace), []cluster.Problem{problem})
		soon(t, 20*time.Second, func() string {
			// the API server has its own
			list, err := p.client.CoreV1().Events("default").List(t.Context(),
				metav1.ListOptions{FieldSelector: "reason=" + kube.ReasonProblem + ",involvedObject.name=" + name})
			noError(t, err)
			if len(list.Items) == 0 {
				return "the Event of " + name
			}
			got := list.Items[0].Message
			t.Logf("%s: %d bytes: %.40q … %q", name, len(got), got, got[max(0, len(got)-40):])
			if !strings.HasPrefix(got, "spec.externalIPs[0]: ") || strings.ContainsRune(got, '\x1b') {
				t.Errorf("%q", got)
			}
			return ""
		})
	}
}

// TestRepeatedEvent checks that a problem that comes and goes has one Event, which counts, at most
// 25 times; and that it has a new one after that was deleted.
func TestRepeatedEvent(t *testing.T) {
	p := startControlPlane(t)
	r := kube.NewEvents(p.own, "test", slog.New(slog.DiscardHandler))
	defer r.Stop()
	now := time.Now()
	report := func(name string) {
		problem := cluster.Problem{Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: name},
			Message: "is odd"}
		for _, problems := range [][]cluster.Problem{{problem}, {problem}, nil} {
			r.Report(now, problems)
			now = now.Add(kube.Grace)
		}
	}
	events := p.client.CoreV1().Events("default")
	of := func(name string) []corev1.Event {
		list, err := events.List(t.Context(),
			metav1.ListOptions{FieldSelector: "reason=" + kube.ReasonProblem + ",involvedObject.name=" + name})
		noError(t, err)
		return list.Items
	}
	written := func(name string) []corev1.Event { // and so are all reported before
		report(name)
		soon(t, 20*time.Second, func() string {
			if len(of(name)) == 0 {
				return "the Event of " + name
			}
			return ""
		})
		return of("web")
	}
	report("web")
	report("web")
	list := written("second")
	if len(list) != 1 || list[0].Count != 2 || list[0].Source.Component != "test" || list[0].Type != "Warning" ||
		list[0].LastTimestamp.Before(&list[0].FirstTimestamp) {
		t.Fatalf("after two reports: %+v", list)
	}
	noError(t, events.Delete(t.Context(), list[0].Name, metav1.DeleteOptions{}))
	report("web")
	if list = written("third"); len(list) != 1 {
		t.Fatalf("after a report of a deleted Event: %+v", list)
	}
	for range 40 {
		report("web")
	}
	if list = written("fourth"); len(list) != 1 || list[0].Count < 20 || list[0].Count > 25 {
		t.Fatalf("after many reports: %d Events: %+v", len(list), list)
	}
}
