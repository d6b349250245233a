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
