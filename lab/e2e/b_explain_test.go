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
	"hairpin/walk/explain/question"
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
			Question: question.Question{From: from, To: "svc/kube-system/kube-dns:dns"}, Proto: "udp", Live: true,
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

// TestSend sends packets from pods to pods of other nodes. The walk of two nodes is compared with
// what their agents observe of the packet.
func TestSend(t *testing.T) {
	e := open(t)
	config := config.DefaultConfig()
	config.Process.Kubeconfig = e.Kubeconfig()
	for _, from := range e.pods("client") {
		for i, to := range e.pods("web") {
			if from.Spec.NodeName == to.Spec.NodeName {
				continue
			}
			var out, errs bytes.Buffer
			family := []string{"4", "6"}[i%2]
			err := ui.Explain(e.Context(), &out, &errs, ui.ExplainOptions{
				Question: question.Question{From: "pod/default/" + from.Name, To: "pod/default/" + to.Name + ":8080"},
				Proto:    "tcp", IPFamily: family, Live: true, Send: true, EveryNode: true,
				Namespace: inspect.DefaultNamespace, Timeout: time.Minute, Output: "text",
			}, config)
			if err != nil || !strings.Contains(out.String(), "answered after") ||
				!strings.Contains(out.String(), "The packet did what the walk says.") {
				t.Errorf("%s to %s, IPv%s: %v\n%s%s", from.Name, to.Name, family, err, out.String(), errs.String())
			}
		}
	}
}

// agents returns the options to reach the cluster's agents.
func agents(e *e2e) inspect.ClusterOptions {
	return inspect.ClusterOptions{Kubeconfig: e.Kubeconfig(), Namespace: inspect.DefaultNamespace, Timeout: time.Minute}
}

// TestCollect collects the support data of all nodes.
func TestCollect(t *testing.T) {
	e := open(t)
	config := config.DefaultConfig()
	config.Process.Kubeconfig = e.Kubeconfig()
	var out, errs bytes.Buffer
	e.check(inspect.Collect(e.Context(), &out, &errs, config,
		inspect.CollectOptions{All: true, ClusterOptions: agents(e)}))
	for _, node := range []string{"node-a", "node-b", "node-c"} {
		if !strings.Contains(errs.String(), node+": ") {
			t.Errorf("nothing of %s: %s", node, errs.String())
		}
	}
	if out.Len() < 10000 {
		t.Errorf("%d bytes", out.Len())
	}
}

// TestDiff compares all nodes with their desired state through the API server: none differs.
func TestDiff(t *testing.T) {
	e := open(t)
	config := config.DefaultConfig()
	o := inspect.DiffOptions{All: true, ClusterOptions: agents(e), Systems: []string{"openvswitch", "nft"}}
	var out bytes.Buffer
	e.check(inspect.Diff(e.Context(), &out, config, o))
	for _, node := range []string{"node-a", "node-b", "node-c"} {
		if !strings.Contains(out.String(), node+": no differences\n") {
			t.Errorf("nothing of %s: %s", node, out.String())
		}
	}
	out.Reset()
	o.Output, o.Object = "yaml", "Service/kube-system/kube-dns"
	e.check(inspect.Diff(e.Context(), &out, config, o))
	if n := strings.Count(out.String(), "planned: true"); n != 3 {
		t.Errorf("kube-dns is planned on %d nodes:\n%s", n, out.String())
	}
	o.Object = "Service/kube-system/none"
	if err := inspect.Diff(e.Context(), &out, config, o); err == nil || !strings.Contains(err.Error(), "planned") {
		t.Errorf("a Service that does not exist: %v", err)
	}
}
