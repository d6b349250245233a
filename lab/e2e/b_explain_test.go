//go:build e2e

package e2e

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"hairpin/config"
	"hairpin/inspect"
	"hairpin/ui"
	"hairpin/walk/explain"
)

// TestExplain explains packets that pass two nodes: each node's state is read through the API
// server, and nothing is wrong.
func TestExplain(t *testing.T) {
	e := open(t)
	config := config.DefaultConfig()
	config.Process.Kubeconfig = e.Kubeconfig()
	for _, from := range []string{"host/node-a", "host/node-b", "host/node-c", "outside"} {
		var out, errs bytes.Buffer
		err := ui.Explain(e.Context(), &out, &errs, ui.ExplainOptions{
			Question: explain.Question{From: from, To: "svc/kube-system/kube-dns:dns"}, Proto: "udp", Live: true,
			EveryNode: true,
			Namespace: inspect.DefaultNamespace, Timeout: time.Minute, Output: "text",
		}, config)
		switch {
		case from == "outside": // the Service has no address for external clients
			if err == nil {
				t.Errorf("%s: delivered:\n%s", from, out.String())
			}
		case err != nil || strings.Contains(out.String(), "FAULT") || strings.Contains(errs.String(), "read back"):
			t.Errorf("%s: %v\n%s%s", from, err, out.String(), errs.String())
		}
	}
}

// TestCollect collects the support data of all nodes.
func TestCollect(t *testing.T) {
	e := open(t)
	config := config.DefaultConfig()
	config.Process.Kubeconfig = e.Kubeconfig()
	var out, errs bytes.Buffer
	e.check(inspect.Collect(e.Context(), &out, &errs, config,
		inspect.CollectOptions{EveryNode: true, Namespace: inspect.DefaultNamespace, Timeout: time.Minute}))
	for _, node := range []string{"node-a", "node-b", "node-c"} {
		if !strings.Contains(errs.String(), node+": ") {
			t.Errorf("nothing of %s: %s", node, errs.String())
		}
	}
	if out.Len() < 10000 {
		t.Errorf("%d bytes", out.Len())
	}
}
