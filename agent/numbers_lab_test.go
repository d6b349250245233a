package agent_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
)

// moving is a Service with an allocated proxy port (plan/admission/proxyport.go). Both that the
// test makes have the same first choice.
func moving(name string, day int, n int, endpoint string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: default, uid: %[1]s, creationTimestamp: "2026-01-0%[2]dT00:00:00Z"}
spec:
  type: ClusterIP
  clusterIP: 10.96.77.%[3]d
  clusterIPs: [10.96.77.%[3]d]
  ipFamilies: [IPv4]
  internalTrafficPolicy: Local
  externalIPs: [203.0.113.%[3]d]
  ports: [{name: x, port: 80, targetPort: 8080, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s, namespace: default, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: x, port: 8080, protocol: TCP}]
endpoints: [{addresses: [%[4]s], nodeName: node-a, conditions: {ready: true}}]
`, name, day, n, endpoint)
}

// lateNFT is a script in place of nft, which lists a table late, as on a busy machine.
const lateNFT = `#!/bin/sh
case "$*" in
*"list table inet"*) [ ! -e /run/nft-is-late ] || sleep 2 ;;
esac
exec /usr/sbin/nft "$@"
`

// TestServiceNumbersStay: a Service keeps its proxy port, and so all its connections. This holds
// when an older Service that has the port it wants is removed or added, and when the agent restarts
// meanwhile, also if nft is slow. A port that moved led new connections to the endpoints of the
// older Service, until OVN had the change.
func TestServiceNumbersStay(t *testing.T) {
	const older, younger = "moves-26", "moves-102"
	t.Parallel()
	l := startDemoIn(t, cluster.ModeLocal)
	a := l.Node("node-a")
	file := func(name string) string { return filepath.Join(l.Dir(), "manifests", name+".yaml") }
	put := func(name, text string) {
		if err := os.WriteFile(file(name)+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file(name)+".new", file(name)); err != nil {
			t.Fatal(err)
		}
	}
	number := func(n int) string {
		m := regexp.MustCompile(fmt.Sprintf(`203\.0\.113\.%d \. tcp \. 80 .*? : 169\.254\.169\.6 \. (\d+)`,
			n)).FindStringSubmatch(sh(t, a, "nft list map inet hairpin externals4"))
		if m == nil {
			return ""
		}
		return m[1]
	}
	served := func(n int, want bool) {
		t.Helper()
		eventually(t, 20*time.Second, fmt.Sprintf("203.0.113.%d is served: %v", n, want),
			func() (bool, string) { return (number(n) != "") == want, "" })
		waitServes(t, a)
		time.Sleep(300 * time.Millisecond) // of traffic
	}
	put(older, moving(older, 1, 26, "10.244.1.4"))
	served(26, true)
	put(younger, moving(younger, 2, 102, "10.244.1.3"))
	served(102, true)
	to, from := netip.MustParseAddrPort("203.0.113.102:80"), []lab.Place{a.Host, l.Host("client")}
	for _, p := range from {
		eventually(t, 20*time.Second, "the Service from "+p.Name(), func() (bool, string) {
			x := lab.Get(t.Context(), p, probe.Request{Protocol: "tcp", To: to, Timeout: time.Second})
			return x.Name == "pod-a1", x.Name + x.Error
		})
	}
	wanted, had := number(26), number(102)
	if wanted == had || had == "" {
		t.Fatalf("the Services have the numbers %q and %q", wanted, had)
	}
	var asked, wrong, slow atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	end := sync.OnceFunc(func() { close(stop); wg.Wait() })
	defer end()
	wrapNFT(t, a, lateNFT)
	for _, p := range from {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				begin := time.Now()
				x := lab.Get(t.Context(), p, probe.Request{Protocol: "tcp", To: to, Timeout: 10 * time.Second})
				if asked.Add(1); x.Name != "pod-a1" && wrong.Add(1) < 5 {
					t.Errorf("%s: %q answered: %s", p.Name(), x.Name, x.Error)
				}
				if time.Since(begin) > 900*time.Millisecond { // a packet was lost
					slow.Add(1)
				}
			}
		})
	}
	o := underAt(t, gentle, []path{{"host", from[0], "tcp", to}, {"client", from[1], "tcp", to}}, func(traffic) {
		for _, restart := range []bool{false, true, false} {
			if err := os.Remove(file(older)); err != nil {
				t.Fatal(err)
			}
			served(26, false)
			if restart {
				if err := a.Kill(t.Context(), agent, syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				sh(t, a, "touch /run/nft-is-late")
				if err := a.Start(t.Context(), agent); err != nil {
					t.Fatal(err)
				}
				served(102, true)
				sh(t, a, "rm /run/nft-is-late")
			}
			if now := number(102); now != had {
				t.Errorf("restart %v: the number was %s, and is %s without the older Service", restart, had, now)
			}
			put(older, moving(older, 1, 26, "10.244.1.4"))
			served(26, true)
			if now := number(102); now != had {
				t.Errorf("restart %v: the number was %s, and is %s with the older Service", restart, had, now)
			}
		}
	})
	end()
	t.Logf("asked %d times: %d wrong answers, %d waited for a second; %s", asked.Load(), wrong.Load(), slow.Load(), o)
	o.allWell(t)
}
