//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"hairpin/lab"
	"hairpin/lab/cluster"
)

const (
	prometheusAddress = "127.0.0.1:9090" // on the client outside the cluster
	monitoringPage    = "../../docs/operations/monitoring.md"
	alertsFile        = "../../charts/hairpin/files/alerts.yaml"
	dashboardFile     = "../../charts/hairpin/files/dashboard.json"
)

// monitor has what an administrator without the Prometheus operator binds, as
// docs/operations/monitoring.md says.
const monitor = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: e2e-prometheus, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: e2e-prometheus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: hairpin-metrics}
subjects: [{kind: ServiceAccount, name: e2e-prometheus, namespace: default}]
`

// noSeries are dashboard queries without a series in this cluster, with the reason.
var noSeries = []string{
	"container_",                // of the kubelet: the lab's Prometheus does not scrape it
	"hairpin_policy_dropped_",   // no pod is isolated
	"hairpin_cni_errors_total",  // no request failed
	"hairpin_egress_move_",      // no address has moved
	"hairpin_controller_egress", // no EgressIP has been assigned
	"hairpin_controller_bgp_",   // there is no BGPAdvertisement
}

// prometheus is a running server.
type prometheus struct {
	*e2e
	at *lab.Host
}

// startPrometheus starts Debian's Prometheus outside the cluster, with the job of monitoringPage
// and the alerts of the chart.
func (e *e2e) startPrometheus() prometheus {
	e.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		e.Skip("no prometheus: lab/setup.sh tests")
	}
	e.apply(monitor)
	dir := e.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		e.check(os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	token := write("token", strings.TrimSpace(e.kubectl("create", "token", "e2e-prometheus")))

	page, err := os.ReadFile(monitoringPage)
	e.check(err)
	job := regexp.MustCompile("(?s)```yaml\n(scrape_configs:.*?)```").FindSubmatch(page)
	if job == nil {
		e.Fatalf("%s has no job for Prometheus", monitoringPage)
	}
	var config map[string]any
	e.check(yaml.Unmarshal(job[1], &config))
	// A Prometheus outside the cluster has no account mounted.
	scrape := config["scrape_configs"].([]any)[0].(map[string]any)
	scrape["authorization"] = map[string]any{"credentials_file": token}
	delete(scrape, "kubernetes_sd_configs")
	scrape["static_configs"] = e.discovered()
	config["scrape_configs"] = []any{scrape, map[string]any{"job_name": "prometheus",
		"static_configs": []any{map[string]any{"targets": []string{prometheusAddress}}}}}
	alerts, err := filepath.Abs(alertsFile)
	e.check(err)
	config["rule_files"] = []string{alerts}
	config["global"] = map[string]any{"scrape_interval": "2s", "evaluation_interval": "2s"}
	text, err := yaml.Marshal(config)
	e.check(err)

	at := e.Lab().Host(cluster.ClientName)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := at.Command(ctx, program, "--config.file", write("prometheus.yml", string(text)),
		"--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", prometheusAddress)
	log, err := os.Create(filepath.Join(dir, "log"))
	e.check(err)
	cmd.Stderr = log
	e.check(cmd.Start())
	e.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if text, err := os.ReadFile(log.Name()); err == nil && e.Failed() {
			e.Logf("log of Prometheus:\n%s", text)
		}
		e.check(log.Close())
	})
	return prometheus{e, at}
}

// discovered returns what Prometheus finds by the API, for Debian's Prometheus has no client of it:
// a target for each container of Hairpin's pods, with the labels of the role pod.
func (e *e2e) discovered() (targets []any) {
	e.Helper()
	list, err := e.Client().CoreV1().Pods(namespace).List(e.Context(), metav1.ListOptions{})
	e.check(err)
	for _, p := range list.Items {
		for _, c := range p.Spec.Containers {
			labels := map[string]string{"__meta_kubernetes_pod_ip": p.Status.PodIP,
				"__meta_kubernetes_pod_name": p.Name, "__meta_kubernetes_pod_node_name": p.Spec.NodeName,
				"__meta_kubernetes_pod_container_name":               c.Name,
				"__meta_kubernetes_pod_label_app_kubernetes_io_name": p.Labels["app.kubernetes.io/name"]}
			targets = append(targets, map[string]any{"targets": []string{p.Status.PodIP}, "labels": labels})
		}
	}
	return targets
}

// series are the results of a query: labels, and a value as text.
type series []struct {
	Metric map[string]string `json:"metric"`
	Value  []any             `json:"value"`
}

func (p prometheus) query(expr string) (series, error) {
	out, err := p.at.Exec(p.Context(), "promtool", "query", "instant", "--format", "json", "http://"+prometheusAddress,
		expr)
	if err != nil {
		return nil, err
	}
	var s series
	return s, json.Unmarshal([]byte(out), &s)
}

// TestPrometheus scrapes agents and controllers with a real Prometheus outside the cluster, as
// monitoringPage describes. Each query of the dashboard has a result, each alert can be evaluated,
// and none fires while the cluster is healthy.
func TestPrometheus(t *testing.T) {
	p := open(t).startPrometheus()
	targets := map[string]int{"agent": 3, "controller": 1}
	for container, least := range targets {
		p.until("Prometheus scrapes every "+container, time.Minute, func() (bool, error) {
			s, err := p.query(`up{job="hairpin",container="` + container + `"} == 1`)
			return len(s) >= least, err
		})
	}
	// rate() wants two samples, and each histogram an event
	first := p.pods("client")[0]
	p.kubectl("delete", "pod", first.Name)
	p.check(p.WaitWorkloads(p.Context()))
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	text, err := os.ReadFile(dashboardFile)
	p.check(err)
	p.check(json.Unmarshal(text, &board))
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			expr := strings.NewReplacer("$node", ".*", "$namespace", namespace).Replace(target.Expr)
			if slices.ContainsFunc(noSeries, func(s string) bool { return strings.Contains(expr, s) }) {
				if _, err := p.query(expr); err != nil {
					t.Errorf("%s: %v", panel.Title, err)
				}
				continue
			}
			p.until("a result of "+panel.Title+": "+expr, time.Minute, func() (bool, error) {
				s, err := p.query(expr)
				return len(s) > 0, err
			})
		}
	}
	failed, err := p.query("prometheus_rule_evaluation_failures_total > 0")
	p.check(err)
	if rules, err := p.query("prometheus_rule_group_rules > 0"); err != nil || len(rules) == 0 || len(failed) > 0 {
		t.Errorf("groups of rules: %v, %v; with failures: %v", rules, err, failed)
	}
	firing, err := p.query(`ALERTS{alertstate="firing"}`)
	p.check(err)
	for _, a := range firing {
		t.Errorf("fires in a healthy cluster: %v", a.Metric)
	}
	for _, expr := range []string{
		`max by (container) (scrape_duration_seconds{job="hairpin"})`,
		`max by (container) (scrape_samples_scraped{job="hairpin"})`,
		`max by (container) (rate(process_cpu_seconds_total{job="hairpin"}[30s]))`,
	} {
		s, err := p.query(expr)
		p.check(err)
		for _, v := range s {
			t.Logf("%s %s: %v", v.Metric["container"], expr, v.Value[1])
		}
	}
}
