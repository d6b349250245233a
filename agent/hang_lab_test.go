package agent_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hairpin/lab"
)

// hang is another process than the agent that stops to reply, and continues later.
type hang struct {
	name   string
	part   string // the part that waits
	for_   string // what it waits for
	reads  bool   // reading works all the same
	others []string
	stop   func(*testing.T, *lab.Node)
	resume func(*testing.T, *lab.Node)
}

func signalled(daemon string, sig syscall.Signal) func(*testing.T, *lab.Node) {
	return func(t *testing.T, n *lab.Node) {
		t.Helper()
		noError(t, n.Signal(daemon, sig))
	}
}

// hangingNFT is a script in place of nft.
const hangingNFT = `#!/bin/sh
while [ -e /run/nft-hangs ]; do sleep 0.05; done
exec /usr/sbin/nft "$@"
`

func hangs() []hang {
	const ovn, ovs, nft, host = "ovn", "openvswitch", "nft", "host"
	return []hang{
		{"ovsdb-server", ovs, "ovsdb-server of Open vSwitch", true, []string{ovn, host},
			signalled(lab.OVSDB, syscall.SIGSTOP), signalled(lab.OVSDB, syscall.SIGCONT)},
		{"ovs-vswitchd", ovs, "ovs-vswitchd", false, []string{ovn, host}, signalled(lab.VSwitchd, syscall.SIGSTOP),
			signalled(lab.VSwitchd, syscall.SIGCONT)},
		{"nft", nft, "nft", false, []string{ovn, ovs},
			// Services' elements are written without nft, but another chain in Hairpin's table
			// makes the agent read.
			func(t *testing.T, n *lab.Node) {
				sh(t, n, "touch /run/nft-hangs; /usr/sbin/nft add chain inet hairpin stranger")
			},
			func(t *testing.T, n *lab.Node) { sh(t, n, "rm -f /run/nft-hangs") }},
	}
}

// movingService is a Service of type NodePort with parameters: number, number, endpoint.
const movingService = `apiVersion: v1
kind: Service
metadata: {name: moving%[1]d, namespace: default}
spec:
  type: NodePort
  clusterIP: 10.96.77.%[1]d
  clusterIPs: [10.96.77.%[1]d]
  ports: [{name: a, protocol: TCP, port: 80, targetPort: 8080, nodePort: 3077%[1]d}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: moving%[1]d, namespace: default, labels: {kubernetes.io/service-name: moving%[1]d}}
addressType: IPv4
ports: [{name: a, protocol: TCP, port: 8080}]
endpoints: [{addresses: [%[2]s], conditions: {ready: true}, nodeName: node-b}]
`

// TestHangs: a process that hangs delays what needs it and nothing else. The agent reports which
// part waits for what. When the process continues, nothing was lost. OVN serves Services here,
// which adds a system that may hang or be delayed.
func TestHangs(t *testing.T) {
	t.Parallel()
	_, n := alone(t)
	sh(t, n, `printf '[default]\nservice-engine = ovn\n' >>`+settings)
	wrapNFT(t, n, hangingNFT)
	giveManifests(t, n)
	start(t, n)
	waitWell(t, n)
	for i, h := range hangs() {
		t.Run(h.name, func(t *testing.T) { h.test(t, n, i+1) })
	}
}

func (h *hang) test(t *testing.T, n *lab.Node, number int) {
	j := &judged{t: t, node: n}
	name := fmt.Sprintf("moving%d.yaml", number)
	served := func(what, endpoint string) {
		t.Helper()
		j.put(name, fmt.Sprintf(movingService, number, endpoint))
		took := eventually(t, 5*time.Second, what+" is in the Northbound database", func() (bool, string) {
			list := sh(t, n, "ovn-nbctl --timeout=5 lb-list")
			return strings.Contains(list, endpoint+":8080"), list
		})
		t.Logf("%s is in the Northbound database after %d ms", what, took.Milliseconds())
	}
	atRest(t, n)
	h.stop(t, n)
	resumed := false
	resume := func() {
		if !resumed {
			resumed = true
			h.resume(t, n)
		}
	}
	t.Cleanup(resume)
	// One that needs every part, then two that change in the Northbound database only.
	served("a new Service", "10.244.2.70")
	served("a changed endpoint", "10.244.2.71")
	took := eventually(t, 20*time.Second, "the status reports what waits for what",
		func() (bool, string) { return h.told(t, n) })
	t.Logf("the status says so after %d ms", took.Milliseconds())
	served("another changed endpoint", "10.244.2.72")
	port := fmt.Sprintf("3077%d", number)
	for system, script := range map[string]string{"nft": "nft list table inet hairpin",
		"openvswitch": "ovs-ofctl dump-flows br-ex"} {
		if system == h.part && !h.reads {
			continue
		}
		eventually(t, 10*time.Second, system+" has the Service's port", func() (bool, string) {
			return strings.Contains(sh(t, n, script), port), ""
		})
	}
	h.answersAnyway(t, n)

	resume()
	took = eventually(t, 20*time.Second, "all is in sync", func() (bool, string) { return well(t.Context(), n) })
	t.Logf("all is in sync after %d ms", took.Milliseconds())
	eventually(t, 20*time.Second, "nothing was lost", func() (bool, string) {
		out, err := n.Exec(t.Context(), "hairpin", "diff")
		return err == nil, out
	})
	waitServes(t, n)
}

// told reports whether `hairpin status`, within a second, reports that the part waits, and that the
// others do not.
func (h *hang) told(t *testing.T, n *lab.Node) (bool, string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	out, _ := n.Exec(ctx, "hairpin", "status", "--output=wide") // the exit status reports a problem
	if ctx.Err() != nil {
		return false, "no answer"
	}
	for _, l := range lines(out) {
		f := strings.Fields(l)
		if len(f) < 2 {
			continue
		}
		waits := strings.Contains(l, "waits for "+h.for_+" since ")
		if f[1] == h.part && !waits {
			return false, out
		}
		for _, other := range h.others {
			if f[1] == other && strings.Contains(l, "waits for ") {
				return false, out
			}
		}
	}
	return strings.Contains(out, h.for_), out
}

// answersAnyway sends all requests of the agent's socket: those that cannot be served return an
// error in good time.
func (h *hang) answersAnyway(t *testing.T, n *lab.Node) {
	for _, path := range []string{"/wanted", "/snapshot", "/configuration", "/metrics", "/livez"} {
		if _, err := ask(t.Context(), n, path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{"/diff", "/found"} {
		_, err := ask(t.Context(), n, path)
		if h.reads && err != nil || !h.reads &&
			(err == nil || os.IsTimeout(err) || !strings.Contains(err.Error(), h.for_)) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestHangsAtRest: a daemon that hangs is named although nothing changes: by status, metrics and
// health.
func TestHangsAtRest(t *testing.T) {
	t.Parallel()
	for daemon, name := range map[string]string{
		lab.OVSDB: "ovsdb-server of Open vSwitch", lab.VSwitchd: "ovs-vswitchd",
		lab.NB: "ovsdb-server of OVN_Northbound", lab.SB: "ovsdb-server of OVN_Southbound",
		lab.Northd: "ovn-northd", lab.Controller: "ovn-controller",
	} {
		t.Run(daemon, func(t *testing.T) {
			t.Parallel()
			_, n := alone(t)
			giveManifests(t, n)
			start(t, n)
			waitWell(t, n)
			responds := func(number int) (bool, string) {
				metrics, err := ask(t.Context(), n, "/metrics")
				return strings.Contains(metrics, fmt.Sprintf("hairpin_daemon_responds{daemon=%q} %d\n", name, number)),
					fmt.Sprint(err, metrics)
			}
			atRest(t, n)
			if ok, all := responds(1); !ok {
				t.Error(all)
			}
			noError(t, n.Signal(daemon, syscall.SIGSTOP))
			resume := sync.OnceFunc(func() { noError(t, n.Signal(daemon, syscall.SIGCONT)) })
			t.Cleanup(resume)
			took := eventually(t, 20*time.Second, "status names it", func() (bool, string) {
				out, _ := n.Exec(t.Context(), "hairpin", "status") // the exit status reports a problem
				return strings.Contains(out, "waits for "+name+" since "), out
			})
			t.Logf("status names it after %d ms", took.Milliseconds())
			took = eventually(t, 20*time.Second, "metrics name it", func() (bool, string) { return responds(0) })
			t.Logf("metrics name it after %d ms more", took.Milliseconds())
			if daemon == lab.Controller { // all of them have the same effect, after ten seconds
				eventually(t, 20*time.Second, "the node is not ready", func() (bool, string) {
					code, _, body := curl(t.Context(), n.Host, "http://127.0.0.1:10256/readyz")
					return code == http.StatusServiceUnavailable && strings.Contains(body, name), body
				})
			}
			resume()
			took = eventually(t, 20*time.Second, "all is in sync",
				func() (bool, string) { return well(t.Context(), n) })
			t.Logf("all is in sync after %d ms", took.Milliseconds())
		})
	}
}
