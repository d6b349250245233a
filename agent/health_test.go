package agent_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/lab"
)

// balancedService is a Service of a load balancer: its health check port, the time of the last
// change, its endpoints.
const balancedService = `apiVersion: v1
kind: Service
metadata: {name: balanced, namespace: default}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  healthCheckNodePort: %[1]d
  clusterIP: 10.96.77.1
  clusterIPs: [10.96.77.1]
  ipFamilies: [IPv4]
  ports: [{name: a, port: 80, protocol: TCP, nodePort: 30777}, {name: b, port: 81, protocol: TCP, nodePort: 30778}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: balanced-1
  namespace: default
  labels: {kubernetes.io/service-name: balanced}
  annotations: {endpoints.kubernetes.io/last-change-trigger-time: "%[2]s"}
addressType: IPv4
endpoints:
%[3]sports: [{name: a, port: 8080, protocol: TCP}, {name: b, port: 8081, protocol: TCP}]
`

// putBalanced writes the Service with these endpoints.
func (j *judged) putBalanced(port int, node string, changed time.Time, endpoints ...string) {
	j.t.Helper()
	list, trigger := "", ""
	for _, a := range endpoints {
		list += fmt.Sprintf("- {addresses: [%s], nodeName: %s}\n", a, node)
	}
	if !changed.IsZero() {
		trigger = changed.UTC().Format(time.RFC3339Nano)
	}
	j.put("balanced.yaml", fmt.Sprintf(balancedService, port, trigger, list))
}

// judged is a node with an agent, and an external client that checks its health.
type judged struct {
	t      *testing.T
	node   *lab.Node
	client *lab.Host
}

// answers waits until a page has a status code, from outside and in both families.
func (j *judged) answers(what, path string, port, code int) (header http.Header, body string) {
	j.t.Helper()
	took := eventually(j.t, 20*time.Second, fmt.Sprintf("%s: %s is %d", what, path, code), func() (bool, string) {
		for _, p := range j.node.Addresses() {
			got := 0
			if got, header, body = curl(j.t.Context(), j.client,
				fmt.Sprintf("http://%s%s", hostPort(p.Addr().String(), port), path)); got != code {
				return false, fmt.Sprintf("%s: %d %s", p.Addr(), got, body)
			}
		}
		return true, ""
	})
	j.t.Logf("%s: %s is %d after %d ms: %s", what, path, code, took.Milliseconds(), strings.TrimSpace(body))
	return header, body
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, fmt.Sprint(port)) }

// metric returns the value of a metric of the agent, as text.
func (j *judged) metric(name string) string {
	_, _, body := curl(j.t.Context(), j.node.Host, "http://127.0.0.1:10249/metrics")
	for _, l := range lines(body) {
		if rest, ok := strings.CutPrefix(l, name+" "); ok {
			return rest
		}
	}
	return ""
}

// put writes a manifest of the node's agent.
func (j *judged) put(name, content string) {
	j.t.Helper()
	noError(j.t, j.node.WriteFile(folder+"/."+name, content))
	sh(j.t, j.node, fmt.Sprintf("mv %s/.%s %s/%s", folder, name, folder, name))
}

// TestHealth: the results that probes, load balancers and Prometheus get from a node.
func TestHealth(t *testing.T) {
	t.Parallel()
	l, n := alone(t)
	giveManifests(t, n)
	start(t, n)
	waitWell(t, n)
	client, err := l.StartHost(t.Context(), lab.HostConfig{Name: "client"})
	noError(t, err)
	j := &judged{t, n, client}
	t.Run("endpoints", func(t *testing.T) { (&judged{t, n, client}).endpoints() })
	t.Run("health check port", func(t *testing.T) { (&judged{t, n, client}).checkPort() })
	t.Run("port taken", func(t *testing.T) { (&judged{t, n, client}).portTaken() })
	t.Run("lost flows", func(t *testing.T) { (&judged{t, n, client}).lostFlows() })
	t.Run("not kept", func(t *testing.T) { (&judged{t, n, client}).notKept() })
	j.answers("at the end", "/readyz", 10256, http.StatusOK)
}

func (j *judged) endpoints() {
	t := j.t
	for _, path := range []string{"/livez", "/readyz", "/healthz"} {
		j.answers("served", path, 10256, http.StatusOK)
	}
	var body struct {
		LastUpdated, CurrentTime time.Time
		NodeEligible             *bool
	}
	_, text := j.answers("served", "/healthz", 10256, http.StatusOK)
	if err := json.Unmarshal([]byte(text), &body); err != nil || body.NodeEligible == nil || !*body.NodeEligible ||
		body.CurrentTime.IsZero() || body.LastUpdated.IsZero() {
		t.Errorf("%s: %v", text, err)
	}
	for _, name := range []string{`hairpin_ready`, `hairpin_data_plane_kept`, `hairpin_node_eligible`,
		`hairpin_part_in_sync{part="ovn"}`,
		`hairpin_listener_up{address="[::]:10256",for="healthz"}`} {
		if got := j.metric(name); got != "1" {
			t.Errorf("%s is %q", name, got)
		}
	}
	if code, _, _ := curl(t.Context(), j.client, "http://"+hostPort(j.node.Addresses()[0].Addr().String(), 10249)+
		"/metrics"); code != 0 {
		t.Errorf("metrics can be read from outside: %d", code)
	}
	for _, args := range [][]string{{"status", "--output=json", "--wait=20s"}, {"status", "--wait"}, {"probe", "livez"},
		{"probe", "readyz"}, {"probe", "metrics"}} {
		if out, err := j.node.Exec(t.Context(), append([]string{"hairpin"}, args...)...); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

func (j *judged) checkPort() {
	const port = 30999
	t, changed := j.t, time.Now()
	pods := []string{"10.244.1.10", "10.244.1.11"}
	j.putBalanced(port, "node-a", changed, pods...)
	header, body := j.answers("two endpoints", "/", port, http.StatusOK)
	want := `{"service":{"namespace":"default","name":"balanced"},"localEndpoints":2,"serviceProxyHealthy":true}`
	if strings.TrimSpace(body) != want || header.Get("X-Load-Balancing-Endpoint-Weight") != "2" {
		t.Errorf("%s %v", body, header)
	}
	const measured = `kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"}`
	eventually(t, 20*time.Second, "the change is measured", func() (bool, string) {
		got := j.metric(measured)
		return got == "1", got // one, though the Service has two ports
	})
	t.Logf("from the change until it is in the switch: %s s",
		j.metric(`kubeproxy_network_programming_duration_seconds_sum{ip_family="IPv4"}`))
	for what, endpoint := range map[string]string{"pod": pods[0], "host": j.node.Addresses()[0].Addr().String()} {
		j.putBalanced(port, "node-b", changed, pods...)
		j.answers("endpoints elsewhere", "/", port, http.StatusServiceUnavailable)
		j.putBalanced(port, "node-a", changed, endpoint)
		header, body = j.answers("one endpoint: a "+what, "/", port, http.StatusOK)
		want := `{"service":{"namespace":"default","name":"balanced"},"localEndpoints":1,"serviceProxyHealthy":true}`
		if strings.TrimSpace(body) != want || header.Get("X-Load-Balancing-Endpoint-Weight") != "1" {
			t.Errorf("one endpoint, a %s: %s %v", what, body, header)
		}
	}
	j.putBalanced(port, "node-b", changed, pods...)
	if header, _ = j.answers("endpoints elsewhere", "/", port,
		http.StatusServiceUnavailable); header.Get("X-Load-Balancing-Endpoint-Weight") != "0" {
		t.Errorf("%v", header)
	}
	j.putBalanced(port+1, "node-a", changed, pods...)
	j.answers("another port", "/", port+1, http.StatusOK)
	if code, _, _ := curl(t.Context(), j.client, "http://"+
		hostPort(j.node.Addresses()[0].Addr().String(), port)); code != 0 {
		t.Errorf("the old port answers %d", code)
	}
	sh(t, j.node, "rm "+folder+"/balanced.yaml")
	eventually(t, 20*time.Second, "the port is closed", func() (bool, string) {
		code, _, body := curl(t.Context(), j.client, "http://"+hostPort(j.node.Addresses()[0].Addr().String(), port+1))
		return code == 0, body
	})
}

func (j *judged) portTaken() {
	const port = 30998
	t := j.t
	var taken net.Listener
	noError(t, j.node.Do(func() (err error) { taken, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); return err }))
	defer func() { _ = taken.Close() }()
	j.putBalanced(port, "node-a", time.Time{}, "10.244.1.10", "10.244.1.11")
	problem := fmt.Sprintf("Service/default/balanced: spec.healthCheckNodePort: node node-a: port %d "+
		"cannot be listened on: ", port)
	eventually(t, 20*time.Second, "the agent tells of it", func() (bool, string) {
		list := strings.Join(mustReport(t, j.node).Problems, "\n")
		return strings.Contains(list, problem), list
	})
	if got := j.metric(`hairpin_health_check_node_ports{state="failed"}`); got != "1" {
		t.Errorf("%q failed ports", got)
	}
	noError(t, taken.Close())
	j.answers("the port is free again", "/", port, http.StatusOK)
	waitWell(t, j.node)
}

// lostFlows removes OVN's flows while ovn-controller cannot write them again. Status, health and
// CNI report that, and a walk through the rest ends. When ovn-controller continues, the flows are
// restored.
func (j *judged) lostFlows() {
	t, n := j.t, j.node
	noError(t, n.Signal(lab.Controller, syscall.SIGSTOP))
	resumed := false
	resume := func() {
		if !resumed {
			resumed = true
			noError(t, n.Signal(lab.Controller, syscall.SIGCONT))
		}
	}
	t.Cleanup(resume)
	sh(t, n, "ovs-ofctl del-flows br-int")
	const status = `echo '{"cniVersion": "1.1.0", "name": "hairpin", "type": "hairpin"}' | ` +
		`CNI_COMMAND=STATUS CNI_PATH=/opt/cni/bin hairpin`
	const said = "br-int lost OVN's flows"
	eventually(t, 20*time.Second, "CNI STATUS says so", func() (bool, string) {
		out := sh(t, n, status+` 2>&1 || echo "it failed"`)
		return strings.Contains(out, said) && strings.Contains(out, "it failed"), out
	})
	j.answers("lost flows", "/readyz", 10256, http.StatusServiceUnavailable)
	out := sh(t, n, `hairpin status 2>&1 || echo "it failed"`)
	if !strings.Contains(out, said) || !strings.Contains(out, "it failed") {
		t.Errorf("hairpin status:\n%s", out)
	}
	out = sh(t, n, "hairpin explain --live host/node-a 10.244.2.5:80 2>&1 || true")
	if !strings.Contains(out, "br-int drops it: OVN's flows are gone") || strings.Contains(out, "Delivered") {
		t.Errorf("explain --live:\n%s", out)
	}
	resume()
	waitWell(t, n)
	sh(t, n, status)
	sh(t, n, "ovs-vsctl emer-reset")
	took := eventually(t, 20*time.Second, "flows are back after emer-reset", func() (bool, string) {
		out := sh(t, n, "ovs-ofctl dump-aggregate br-int table=65")
		return !strings.Contains(out, "flow_count=0"), out
	})
	t.Logf("flows are back %d ms after emer-reset", took.Milliseconds())
	waitWell(t, n)
	const logical = "ovn-sbctl --bare --columns=_uuid find Logical_Flow | grep -c ."
	before := sh(t, n, logical)
	sh(t, n, "ovn-sbctl --all destroy Logical_Flow")
	took = eventually(t, time.Minute, "the logical flows are back", func() (bool, string) {
		out := sh(t, n, logical+" || true")
		return out == before, out + " of " + before
	})
	t.Logf("logical flows are back %d ms after their deletion", took.Milliseconds())
	waitWell(t, n)
}

// notKept stops Open vSwitch: after a while load balancers get an unhealthy status.
func (j *judged) notKept() {
	t, ctx := j.t, j.t.Context()
	if err := j.node.Kill(ctx, lab.VSwitchd, 9); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	// The bridge is missing, so only the node itself can send requests.
	at := func(path string) (code int, body string) {
		code, _, body = curl(ctx, j.node.Host, "http://127.0.0.1:"+path)
		return code, body
	}
	eventually(t, 30*time.Second, "the node says that it is not kept", func() (bool, string) {
		code, body := at("10256/healthz")
		return code == http.StatusServiceUnavailable, body
	})
	took := time.Since(begin)
	_, why := at("10256/healthz")
	t.Logf("said after %.1f s: %s", took.Seconds(), strings.TrimSpace(why))
	if code, body := at("30998/"); code != http.StatusServiceUnavailable ||
		!strings.Contains(body, `"localEndpoints":2,"serviceProxyHealthy":false`) {
		t.Errorf("the load balancer hears %d %s", code, body)
	}
	if code, body := at("10256/livez"); code != http.StatusOK {
		t.Errorf("livez: %d %s", code, body)
	}
	if took < 8*time.Second {
		t.Errorf("said after %v: a restart would be told, too", took)
	}
	if err := j.node.Start(ctx, lab.VSwitchd); err != nil {
		t.Fatal(err)
	}
	waitWell(t, j.node)
	j.answers("back", "/healthz", 10256, http.StatusOK)
	j.answers("back", "/", 30998, http.StatusOK)
}
