package charts_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"hairpin/lab/chart"
	"hairpin/ops"
)

const (
	alertsFile    = "hairpin/files/alerts.yaml"
	dashboardFile = "hairpin/files/dashboard.json"
	runbookFile   = "../docs/operations/alerts.md"
)

// alert is a rule of alertsFile.
type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func alerts(t *testing.T) (list []alert) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string  `json:"name"`
			Rules []alert `json:"rules"`
		} `json:"groups"`
	}
	must(t, yaml.UnmarshalStrict(read(t, alertsFile), &file, yaml.DisallowUnknownFields))
	for _, g := range file.Groups {
		list = append(list, g.Rules...)
	}
	return list
}

var (
	metricName = regexp.MustCompile(`\b((?:hairpin|kubeproxy|process|go|container|kube)_[a-z0-9_]+)(\{[^}]*\})?`)
	labelName  = regexp.MustCompile(`([a-z_]+) ?(?:=~|!~|!=|=)`)
	grouping   = regexp.MustCompile(`\b(?:by|without) \(([^)]*)\)`)
)

// fromPrometheus are labels that Prometheus adds to every metric of a PodMonitor.
var fromPrometheus = []string{"node", "pod", "container", "namespace", "instance", "job", "le"}

// checkExpression reports metrics and labels of an expression that no process has.
func checkExpression(t *testing.T, where, expr string) {
	t.Helper()
	known := map[string]ops.Metric{}
	for _, m := range ops.Metrics() {
		known[m.Name] = m
		if m.Kind == "histogram" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				known[m.Name+suffix] = m
			}
			delete(known, m.Name)
		}
	}
	found, labels := 0, slices.Clone(fromPrometheus)
	for _, m := range metricName.FindAllStringSubmatch(expr, -1) {
		metric, ok := known[m[1]]
		if cadvisor := strings.HasPrefix(m[1], "container_"); cadvisor {
			found++
			continue
		}
		if !ok {
			t.Errorf("%s: there is no metric %s", where, m[1])
			continue
		}
		found++
		labels = append(labels, metric.Labels...)
		for _, l := range labelName.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(metric.Labels, l[1]) && !slices.Contains(fromPrometheus, l[1]) {
				t.Errorf("%s: metric %s has no label %s", where, m[1], l[1])
			}
		}
	}
	if found == 0 {
		t.Errorf("%s: no metric in %q", where, expr)
	}
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(g[1], ",") {
			if !slices.Contains(labels, strings.TrimSpace(l)) {
				t.Errorf("%s: no metric of it has label %q", where, l)
			}
		}
	}
}

// TestAlerts checks that alerts use metrics and labels that exist, and that the runbook has an
// entry for each and no other.
func TestAlerts(t *testing.T) {
	var names []string
	for _, a := range alerts(t) {
		names = append(names, a.Alert)
		checkExpression(t, a.Alert, a.Expr)
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) ||
			a.Annotations["summary"] == "" {
			t.Errorf("%s: labels %v, annotations %v", a.Alert, a.Labels, a.Annotations)
		}
	}
	var entries []string
	for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(read(t, runbookFile)), -1) {
		entries = append(entries, m[1])
	}
	if diff := cmp.Diff(names, entries); diff != "" {
		t.Errorf("%s does not have the entries of %s, in their order:\n%s", runbookFile, alertsFile, diff)
	}
}

// TestAlertsFire checks the rules with promtool, and when they fire.
func TestAlertsFire(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool: lab/setup.sh tests")
	}
	for _, args := range [][]string{{"check", "rules", "../" + alertsFile}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = "testdata"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// panel is a graph of the dashboard: expressions with their legends.
type panel struct {
	title, unit string
	queries     [][2]string
}

// one returns a panel with one expression.
func one(title, unit, expr, legend string) panel {
	return panel{title, unit, [][2]string{{expr, legend}}}
}

// rows returns the panels of the dashboard, by row. Variable node selects nodes.
func rows() []struct {
	title  string
	panels []panel
} {
	const on = `{node=~"$node"}`
	type row = struct {
		title  string
		panels []panel
	}
	return []row{
		{"Health", []panel{
			{"Nodes", "none", [][2]string{{`sum(hairpin_ready{container!="controller"})`, "ready"},
				{`max(hairpin_snapshot_objects{kind="node"})`, "in the cluster"}}},
			one("Parts out of sync", "none", `sum by (part) (1 - hairpin_part_in_sync`+on+`)`, "{{part}}"),
			one("Problems of objects", "none", `max by (pod) (hairpin_problems)`, "{{pod}}"),
			one("Pending changes", "s", `max by (node) ((time() - hairpin_pending_since_timestamp_seconds`+on+`) * `+
				`(hairpin_pending_since_timestamp_seconds`+on+` > bool 0))`, "{{node}}"),
			one("Repaired drift", "none", `sum by (node, part) (increase(hairpin_part_drift_total`+on+`[5m]))`,
				"{{node}} {{part}}"),
			one("Versions", "none",
				`count by (mode, engine, datapath, openvswitch, ovn) (hairpin_node_info`+on+`)`,
				"{{mode}} {{engine}} {{datapath}}, Open vSwitch {{openvswitch}}, OVN {{ovn}}"),
		}},
		{"Services and policies", []panel{
			one("Objects", "none", `max by (kind) (hairpin_snapshot_objects`+on+`)`, "{{kind}}"),
			one("Services without endpoints", "none", `max(hairpin_controller_services_without_endpoints)`, "Services"),
			{"Time until endpoints are in the flows", "s", [][2]string{
				{`histogram_quantile(0.5, sum by (le) (rate(kubeproxy_network_programming_duration_seconds_bucket` +
					on +
					`[5m])))`, "median"},
				{`histogram_quantile(0.99, sum by (le) (rate(kubeproxy_network_programming_duration_seconds_bucket` +
					on +
					`[5m])))`, "99th percentile"}}},
			one("Dropped packets by reason", "pps", `sum by (reason) (rate(hairpin_dropped_packets_total`+on+`[5m]))`,
				"{{reason}}"),
			one("Packets that policies drop", "pps",
				`topk(10, sum by (namespace, pod, direction) (rate(hairpin_policy_dropped_packets_total`+on+`[5m])))`,
				"{{namespace}}/{{pod}} {{direction}}"),
			one("Isolated pods", "none", `sum by (node) (hairpin_policy_isolated_pods`+on+`)`, "{{node}}"),
		}},
		{"Egress addresses", []panel{
			one("Addresses", "none", `max by (state) (hairpin_controller_egress_addresses)`, "{{state}}"),
			one("Addresses by node", "none", `sum by (node) (hairpin_egress_node_addresses`+on+`)`, "{{node}}"),
			one("Prefixes announced by BGP", "none",
				`max by (advertisement) (hairpin_controller_bgp_prefixes)`, "{{advertisement}}"),
			one("Nodes that do not answer probes", "none", `max by (pod) (hairpin_egress_unreachable_nodes)`,
				"{{pod}}"),
			{"Time until an address is assigned and announced", "s", [][2]string{
				{`histogram_quantile(0.99, sum by (le) (rate(` +
					`hairpin_controller_egress_assignment_duration_seconds_bucket[30m])))`, "assigned"},
				{`histogram_quantile(0.99, sum by (le) (rate(hairpin_egress_move_duration_seconds_bucket` + on +
					`[30m])))`,
					"announced"}}},
		}},
		{"Data plane", []panel{
			one("Use of conntrack tables", "percentunit",
				`hairpin_conntrack_entries`+on+` / hairpin_conntrack_entries_limit`+on, "{{node}} {{table}}"),
			one("Use of Open vSwitch's limits", "percentunit",
				`hairpin_openvswitch_entries`+on+` / hairpin_openvswitch_entries_limit`+on, "{{node}} {{of}}"),
			one("Flows and megaflows", "none", `hairpin_openvswitch_objects{node=~"$node",of=~"rules|udpif keys"}`,
				"{{node}} {{of}}"),
			one("Upcalls", "pps", `sum by (node) (rate(hairpin_openvswitch_upcalls_total`+on+`[5m]))`, "{{node}}"),
			one("Drops of ovs-vswitchd", "pps",
				`sum by (node, reason) (rate(hairpin_openvswitch_dropped_packets_total`+on+`[5m]))`,
				"{{node}} {{reason}}"),
			one("Restarts of ovs-vswitchd", "none", `increase(hairpin_ovs_restarts_total`+on+`[30m])`, "{{node}}"),
			one("Daemons that do not respond", "none", `sum by (daemon) (1 - hairpin_daemon_responds`+on+`)`,
				"{{daemon}}"),
			one("OVN databases", "none", `hairpin_ovn_database_cells`+on, "{{node}} {{database}}"),
			one("Connections to OVN databases", "none", `min by (client, database) (hairpin_ovn_connected`+on+`)`,
				"{{client}} {{database}}"),
		}},
		{"Processes", []panel{
			one("Memory by container", "bytes", `sum by (pod, container) (container_memory_working_set_bytes{`+
				`namespace="$namespace",container=~"agent|zone|ovs|controller"})`, "{{pod}} {{container}}"),
			one("CPU by container", "none", `sum by (pod, container) (rate(container_cpu_usage_seconds_total{`+
				`namespace="$namespace",container=~"agent|zone|ovs|controller"}[5m]))`, "{{pod}} {{container}}"),
			{"CNI requests", "s", [][2]string{{`histogram_quantile(0.99, sum by (le, command) (rate(` +
				`hairpin_cni_duration_seconds_bucket` + on + `[5m])))`, "{{command}}"}}},
			one("CNI errors", "none", `sum by (node, command, code) (increase(hairpin_cni_errors_total`+on+`[5m]))`,
				"{{node}} {{command}} {{code}}"),
			one("Kubernetes API", "none", `min by (pod) (hairpin_api_reachable)`, "{{pod}}"),
			one("Leader", "none", `hairpin_controller_leader`, "{{pod}}"),
		}},
	}
}

// dashboard returns the dashboard as Grafana imports it.
func dashboard() map[string]any {
	source := map[string]any{"type": "prometheus", "uid": "${datasource}"}
	variable := func(name, query string, multi bool) map[string]any {
		return map[string]any{"name": name, "type": "query", "datasource": source, "query": query, "refresh": 2,
			"multi": multi, "includeAll": multi, "allValue": ".*", "sort": 1}
	}
	var panels []any
	id, y := 0, 0
	for _, r := range rows() {
		id++
		panels = append(panels, map[string]any{"id": id, "type": "row", "title": r.title, "collapsed": false,
			"panels": []any{}, "gridPos": map[string]int{"x": 0, "y": y, "w": 24, "h": 1}})
		y++
		for i, p := range r.panels {
			id++
			var targets []any
			for k, q := range p.queries {
				targets = append(targets, map[string]any{"refId": string(rune('A' + k)), "datasource": source,
					"expr": q[0], "legendFormat": q[1]})
			}
			panels = append(panels, map[string]any{"id": id, "type": "timeseries", "title": p.title,
				"datasource": source, "targets": targets,
				"fieldConfig": map[string]any{"defaults": map[string]any{"unit": p.unit, "min": 0},
					"overrides": []any{}},
				"gridPos": map[string]int{"x": i % 3 * 8, "y": y + i/3*7, "w": 8, "h": 7}})
		}
		y += (len(r.panels) + 2) / 3 * 7
	}
	return map[string]any{"title": "Hairpin", "uid": "hairpin", "schemaVersion": 39, "editable": true,
		"tags": []string{"hairpin", "network"}, "refresh": "30s",
		"time":   map[string]string{"from": "now-1h", "to": "now"},
		"panels": panels, "templating": map[string]any{"list": []any{
			map[string]any{"name": "datasource", "type": "datasource", "query": "prometheus"},
			variable("namespace", "label_values(hairpin_node_info, namespace)", false),
			variable("node", "label_values(hairpin_node_info, node)", true),
		}}}
}

// TestDashboard: the dashboard is generated (`go test ./charts -run Dashboard -update`), and uses
// metrics that exist.
func TestDashboard(t *testing.T) {
	for _, r := range rows() {
		for _, p := range r.panels {
			for _, q := range p.queries {
				checkExpression(t, p.title, q[0])
			}
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	must(t, e.Encode(dashboard()))
	if *update {
		must(t, os.WriteFile(dashboardFile, b.Bytes(), 0o644))
	}
	if diff := cmp.Diff(strings.Split(string(read(t, dashboardFile)), "\n"),
		strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("%s is out of date (go test ./charts -run Dashboard -update):\n%s", dashboardFile, diff)
	}
}

// withOperator renders the chart for a cluster with the Prometheus operator.
func withOperator(t *testing.T, set ...string) []*unstructured.Unstructured {
	t.Helper()
	args := []string{"template", "hairpin", "hairpin", "--namespace", chart.Namespace, "--skip-tests",
		"--api-versions", "monitoring.coreos.com/v1/PodMonitor", "--api-versions",
		"monitoring.coreos.com/v1/PrometheusRule"}
	for _, s := range slices.Concat(chart.Images, []string{"apiServer.host=172.18.0.10"}, set) {
		args = append(args, "--set", s)
	}
	out, problem, err := helmDoes(t, args...)
	if err != nil {
		t.Fatalf("%v: %s", err, problem)
	}
	all, err := chart.Objects(out)
	must(t, err)
	return all
}

// TestMonitoring checks the objects for the Prometheus operator: with its kinds, without them, and
// without the values.
func TestMonitoring(t *testing.T) {
	kinds := func(all []*unstructured.Unstructured) (list []string) {
		for _, o := range all {
			if o.GetLabels()["app.kubernetes.io/name"] != "hairpin" {
				t.Errorf("%s %s has labels %v", o.GetKind(), o.GetName(), o.GetLabels())
			}
			if o.GetAPIVersion() == "monitoring.coreos.com/v1" || strings.Contains(o.GetName(), "dashboard") {
				list = append(list, o.GetKind()+"/"+o.GetName())
			}
		}
		slices.Sort(list)
		return list
	}
	if got := kinds(render(t)); len(got) > 0 {
		t.Errorf("without the operator there are %v", got)
	}
	want := []string{"ConfigMap/hairpin-dashboard", "PodMonitor/hairpin-controller", "PodMonitor/hairpin-node",
		"PrometheusRule/hairpin"}
	all := withOperator(t, "metrics.podMonitor.labels.release=prometheus")
	if diff := cmp.Diff(want, kinds(all)); diff != "" {
		t.Error(diff)
	}
	if got := kinds(withOperator(t, "metrics.podMonitor.enabled=false", "metrics.prometheusRule.enabled=false",
		"metrics.dashboard.enabled=false")); len(got) > 0 {
		t.Errorf("without the values there are %v", got)
	}
	monitor := find(t, all, "PodMonitor", "hairpin-node")
	if l, _, _ := unstructured.NestedStringMap(monitor, "metadata", "labels"); l["release"] != "prometheus" {
		t.Errorf("labels of the PodMonitor: %v", l)
	}
	endpoints, _, err := unstructured.NestedSlice(monitor, "spec", "podMetricsEndpoints")
	must(t, err)
	text, err := json.Marshal(endpoints)
	must(t, err)
	for pod, want := range map[string]string{"172.18.0.3": "172.18.0.3:10251", "fd00::3": "[fd00::3]:10251"} {
		if got := addressOf(t, endpoints[0].(map[string]any), pod); got != want {
			t.Errorf("the address of %s is %q, not %q: %s", pod, got, want, text)
		}
	}
	rule := find(t, all, "PrometheusRule", "hairpin")
	groups, _, err := unstructured.NestedSlice(rule, "spec", "groups")
	must(t, err)
	if n := len(groups[0].(map[string]any)["rules"].([]any)); n != len(alerts(t)) {
		t.Errorf("the PrometheusRule has %d rules", n)
	}
	board := find(t, all, "ConfigMap", "hairpin-dashboard")
	data, _, err := unstructured.NestedString(board, "data", "hairpin.json")
	must(t, err)
	var x map[string]any
	must(t, json.Unmarshal([]byte(data), &x))
}

// addressOf applies an endpoint's relabeling to the address of a pod, as Prometheus does.
func addressOf(t *testing.T, endpoint map[string]any, pod string) (address string) {
	t.Helper()
	for _, r := range endpoint["relabelings"].([]any) {
		rule := r.(map[string]any)
		if rule["targetLabel"] != "__address__" {
			continue
		}
		re := regexp.MustCompile("^(?:" + rule["regex"].(string) + ")$")
		if m := re.FindStringSubmatchIndex(pod); m != nil {
			address = string(re.ExpandString(nil, strings.ReplaceAll(rule["replacement"].(string), "$1", "${1}"), pod,
				m))
		}
	}
	return address
}

// TestMetricsCertificate checks that the files of metrics.tls are those of the configuration, in
// agent and controller, and that Prometheus verifies them.
func TestMetricsCertificate(t *testing.T) {
	all := withOperator(t, "metrics.tls.secretName=cert", "metrics.tls.serverName=hairpin")
	c := configuration(t, all)
	for _, o := range []struct{ kind, name, container string }{{"DaemonSet", "hairpin-node", "agent"},
		{"Deployment", "hairpin-controller", "controller"}} {
		containers, _, err := unstructured.NestedSlice(find(t, all, o.kind, o.name), "spec", "template", "spec",
			"containers")
		must(t, err)
		i := slices.IndexFunc(containers, func(c any) bool { return c.(map[string]any)["name"] == o.container })
		if mounts := fmt.Sprint(containers[i].(map[string]any)["volumeMounts"]); !strings.Contains(mounts,
			"/etc/hairpin-metrics-tls") {
			t.Errorf("%s has mounts %s", o.name, mounts)
		}
	}
	if c.Process.MetricsCert != "/etc/hairpin-metrics-tls/tls.crt" || c.Process.MetricsKey !=
		"/etc/hairpin-metrics-tls/tls.key" {
		t.Errorf("the files are %q and %q", c.Process.MetricsCert, c.Process.MetricsKey)
	}
	if text := fmt.Sprint(find(t, all, "PodMonitor", "hairpin-node")); !strings.Contains(text, "serverName:hairpin") ||
		strings.Contains(text, "insecureSkipVerify") {
		t.Error(text)
	}
}
