package inspect

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/exec"

	"hairpin/kubeapi"
)

// podLog requests the log of a container from a server.
func podLog(t *testing.T, serve http.HandlerFunc) ([]byte, error) {
	t.Helper()
	server := httptest.NewServer(serve)
	defer server.Close()
	client, err := kubeapi.New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	a := &Agents{Client: client, options: ClusterOptions{Timeout: time.Second}}
	text, err := a.log(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n"}}, "agent")
	if ctx.Err() != nil {
		t.Error("the request has no time limit")
	}
	return text, err
}

// TestLogEnd checks that the newest part of a long log is kept.
func TestLogEnd(t *testing.T) {
	for _, size := range []int{0, 10, maxPodLog, maxPodLog + 1, 2*maxPodLog + 10} {
		sent := bytes.Repeat([]byte("0123456789\n"), size/11+1)[:size]
		copy(sent[max(0, size-5):], "newest")
		text, err := podLog(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(sent) })
		if err != nil || !bytes.Equal(text, sent[max(0, size-maxPodLog):]) {
			t.Errorf("of %d bytes: %d bytes, %v", size, len(text), err)
		}
	}
}

// TestLogTimeout checks that a kubelet that does not answer, or stops in the log, does not block
// the command.
func TestLogTimeout(t *testing.T) {
	for _, begin := range []string{"", "line\n"} {
		_, err := podLog(t, func(w http.ResponseWriter, q *http.Request) {
			if begin != "" {
				_, _ = w.Write([]byte(begin))
				w.(http.Flusher).Flush()
			}
			<-q.Context().Done()
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %q: %v", begin, err)
		}
	}
}

// TestStarted checks which commands do not run a second time by the older protocol.
func TestStarted(t *testing.T) {
	lost := errors.New("connection reset by peer")
	some, none := &limitedBuffer{text: []byte("x")}, &limitedBuffer{}
	for _, c := range []struct {
		err         error
		out, stderr *limitedBuffer
		want        bool
	}{
		{lost, none, none, false}, {lost, some, none, true}, {lost, none, some, true}, {errTooLong, none, none, true},
		{exec.CodeExitError{Err: errors.New("exit"), Code: 1}, none, none, true},
	} {
		if got := started(c.err, c.out, c.stderr); got != c.want {
			t.Errorf("%v, %q, %q: %t", c.err, c.out.text, c.stderr.text, got)
		}
	}
}
