package selftest

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/report"
	"hairpin/selftest/podside"
)

// planned returns a test of n nodes whose objects exist, with one family or both.
func planned(n int, dual bool) *test {
	t := &test{Options: Options{Namespace: "ns", HostPort: 29080, Outside: []string{"192.0.2.1:443"}, FromHere: true},
		skip: regexp.MustCompile("$^"), down: map[string]bool{}, pods: map[string]*corev1.Pod{},
		services: map[string]*corev1.Service{}}
	ips := func(v4, v6 string) []string {
		if dual {
			return []string{v4, v6}
		}
		return []string{v4}
	}
	for i := range n {
		node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)}}
		for _, ip := range ips(fmt.Sprint("172.18.0.", i), fmt.Sprint("fc00::", i)) {
			node.Status.Addresses = append(node.Status.Addresses,
				corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
		}
		t.nodes = append(t.nodes, node)
		for j, name := range []string{serverName(i), guardedName(i), hostServerName(i)} {
			p := &corev1.Pod{}
			for _, ip := range ips(fmt.Sprint("10.244.", i, ".", j), fmt.Sprintf("fd00:%d::%d", i, j)) {
				p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
			}
			t.pods[name] = p
		}
		for j, name := range []string{serverName(i), nodePortName(i), guardedName(i), hostServerName(i), selfName(i)} {
			s := t.service(name, name, corev1.ServiceTypeNodePort, answerPort)
			s.Spec.ClusterIPs = ips(fmt.Sprint("10.96.", i, ".", j), fmt.Sprintf("fd01:%d::%d", i, j))
			for k := range s.Spec.Ports {
				s.Spec.Ports[k].NodePort = int32(30000 + 10*j + k)
			}
			t.services[name] = s
		}
	}
	return t
}

// TestMatrix checks which paths are tested, and that their number grows with the nodes and not with
// the square of it.
func TestMatrix(t *testing.T) {
	sizes := map[int]int{}
	for _, n := range []int{1, 2, 3, 6} {
		for _, g := range planned(n, true).groups() {
			sizes[n] += len(g.checks)
			seen := map[string]bool{}
			for _, c := range g.checks {
				if seen[c.name] {
					t.Errorf("%d nodes: %s: %s is there twice", n, g.title, c.name)
				}
				seen[c.name] = true
			}
		}
	}
	t.Log(sizes)
	if sizes[6] != 2*sizes[3] || sizes[3]*2 != sizes[2]*3 || sizes[1] >= sizes[2] {
		t.Errorf("checks by nodes: %v", sizes)
	}
	for _, dual := range []bool{false, true} {
		var all []string
		commands := map[string]string{}
		for _, g := range planned(2, dual).groups() {
			for _, c := range g.checks {
				all = append(all, fmt.Sprintf("%s: %s %s %s %s", g.title, c.name, c.Kind, c.To, c.Server))
				commands[c.name] = c.command()
			}
		}
		text := "\n" + strings.Join(all, "\n") + "\n"
		for _, want := range []string{
			"pod → pod: pod on node-0 → pod on node-1, udp, IPv4 answers 10.244.1.0:8080 server-1",
			"pod → ClusterIP: pod on node-1 → ClusterIP → pod on node-0, tcp, IPv4 answers 10.96.0.0:80 server-0",
			"pod → NodePort: pod on node-0 → NodePort of node-1 → pod on node-1, tcp, IPv4 answers " +
				"172.18.0.1:30010 server-1",
			"host → NodePort: host node-0 → NodePort of node-0 → pod on node-1, udp, IPv4 answers " +
				"172.18.0.0:30011 server-1",
			"host → ClusterIP of a server on a host: host node-0 → ClusterIP → host node-1, tcp, IPv4 answers " +
				"10.96.1.3:80 host-1",
			"pod → itself through ClusterIP: pod on node-0 → itself through ClusterIP, tcp, IPv4 answers " +
				"10.96.0.4:80 client-0",
			"pod → NetworkPolicy drops: pod on node-0 → pod on node-1 port 8081, tcp, IPv4 blocked 10.244.1.1:8081 ",
			"pod → NetworkPolicy drops: pod on node-0 → ClusterIP → pod on node-1, tcp, IPv4 blocked 10.96.1.2:81 ",
			"host → NetworkPolicy drops: host node-0 → pod on node-1, tcp, IPv4 blocked 10.244.1.1:8080 ",
			"host → NetworkPolicy accepts: host node-0 → pod on node-0, tcp, IPv4 answers 10.244.0.1:8080 guarded-0",
			"host → full packets: host node-0 → ClusterIP → pod on node-1, udp, IPv4 full 10.96.1.0:80 ",
			"pod → DNS: pod on node-0 resolves server-1.ns.svc resolves invalid AddrPort ",
			"outside → NodePort: this machine → NodePort of node-0 → pod on node-1, tcp, IPv4 answers " +
				"172.18.0.0:30010 server-1",
			"pod → outside: pod on node-0 → 192.0.2.1:443, tcp, IPv4 accepts 192.0.2.1:443 ",
		} {
			if !strings.Contains(text, "\n"+want+"\n") {
				t.Errorf("not there: %s", want)
			}
			if v6 := strings.Contains(text, "IPv6"); v6 != dual {
				t.Errorf("IPv6 is tested: %v", v6)
			}
		}
		for name, want := range map[string]string{
			"pod on node-0 → NodePort of node-1 → pod on node-1, tcp, IPv4": "kubectl hairpin explain pod/ns/client-0 " +
				"svc/ns/nodeport-1:80 --proto tcp --family 4 --node-port --via node-1 --live",
			"host node-0 → host node-1, udp, IPv4": "kubectl hairpin explain host/node-0 172.18.0.1:29080 --proto udp " +
				"--family 4 --live",
			"this machine → NodePort of node-0 → pod on node-0, tcp, IPv4": "kubectl hairpin explain outside " +
				"svc/ns/nodeport-0:80 --proto tcp --family 4 --node-port --via node-0 --live",
			"pod on node-0 resolves server-1": "kubectl hairpin explain pod/ns/client-0 svc/kube-system/kube-dns:53 " +
				"--proto udp --live",
		} {
			if commands[name] != want {
				t.Errorf("%s: %q", name, commands[name])
			}
		}
	}
	skipping := planned(2, true)
	skipping.skip = regexp.MustCompile("NetworkPolicy|udp")
	for _, g := range skipping.groups() {
		for _, c := range g.checks {
			if strings.Contains(g.title, "NetworkPolicy") || c.Protocol == "udp" {
				t.Errorf("not left out: %s: %s", g.title, c.name)
			}
		}
	}
}

// TestMatrixWithoutServer checks that no path leads to a pod that does not run, and that the others
// are tested.
func TestMatrixWithoutServer(t *testing.T) {
	m := planned(2, true)
	for _, name := range []string{serverName(0), guardedName(1), hostServerName(0)} {
		delete(m.pods, name)
		m.down[name] = true
		for _, s := range m.services {
			if s.Name == name || name == serverName(0) && s.Name == nodePortName(0) {
				s.Spec.Selector[podLabel] = name
			}
		}
	}
	servers := map[string]int{}
	for _, g := range m.groups() {
		for _, c := range g.checks {
			servers[c.Server]++
			for _, down := range []string{"10.244.0.0", "10.96.0.0:", "10.96.0.3:", "10.244.1.1:", "10.96.1.2:",
				"172.18.0.0:29080"} {
				if strings.HasPrefix(c.To.String(), down) {
					t.Errorf("%s: %s: to %s", g.title, c.name, c.To)
				}
			}
		}
	}
	if servers[serverName(0)]+servers[guardedName(1)]+servers[hostServerName(0)] > 0 || servers[serverName(1)] < 20 ||
		servers[guardedName(0)] < 10 || servers[hostServerName(1)] < 10 {
		t.Errorf("checks by server: %v", servers)
	}
	m.down[hostServerName(1)], m.down[serverName(1)] = true, true
	delete(m.pods, serverName(1))
	m.services[serverName(1)].Spec.Selector[podLabel] = serverName(1)
	m.services[nodePortName(1)].Spec.Selector[podLabel] = serverName(1)
	for _, c := range m.paths() {
		t.Errorf("measured: %s", c.name)
	}
	m.down = map[string]bool{clientName("client", 0, true): true, clientName("client", 1, false): true}
	for _, g := range m.groups() {
		for _, c := range m.tested("client", g.checks) {
			if !c.client.here && c.client.host == (c.client.node == 0) {
				t.Errorf("%s: %s has no client", g.title, c.name)
			}
		}
	}
}

// TestShow checks the text and the JUnit file of results.
func TestShow(t *testing.T) {
	x := planned(2, false)
	x.Options = Options{Namespace: "ns", Measure: 1, JUnit: filepath.Join(t.TempDir(), "junit.xml")}
	groups := x.groups()[:2]
	bad := groups[1].checks[0]
	bad.result = podside.Result{Error: "i/o timeout", Attempts: 7}
	bad.explain = "Not delivered: <br-svc> drops it.\n"
	paths := x.paths()
	for i, c := range paths {
		c.result.Measured = &podside.Measurement{ConnectMs: 0.5, RoundTripMs: 0.1, MegabitsPS: float64(1000 - 100*i)}
	}
	paths[5].result = podside.Result{Error: "throughput: refused"}
	var b bytes.Buffer
	x.w = &b
	if err := x.show(groups, paths); !errors.Is(err, report.ErrProblems) {
		t.Errorf("error is %v", err)
	}
	want := `ok    pod → pod: 8 checks
FAIL  pod → ClusterIP: 1 of 8 checks
      pod on node-0 → ClusterIP → pod on node-0, tcp, IPv4 (10.96.0.0:80): i/o timeout (7 attempts)
        $ kubectl hairpin explain pod/ns/client-0 svc/ns/server-0:80 --proto tcp --family 4 --live
        Not delivered: <br-svc> drops it.

PATH                                              CONNECT  ROUND TRIP  THROUGHPUT   COMPARED WITH
host node-0 → host node-1                         0.50 ms  0.10 ms     1000 Mbit/s  
host node-0 → pod on node-1                       0.50 ms  0.10 ms     900 Mbit/s   0.90 × host node-0 → host node-1
host node-0 → ClusterIP → pod on node-1           0.50 ms  0.10 ms     800 Mbit/s   0.89 × host node-0 → pod on node-1
host node-0 → NodePort of node-1 → pod on node-1  0.50 ms  0.10 ms     700 Mbit/s   0.78 × host node-0 → pod on node-1
pod on node-0 → pod on node-1                     0.50 ms  0.10 ms     600 Mbit/s   0.60 × host node-0 → host node-1
pod on node-0 → ClusterIP → pod on node-1         throughput: refused

22 checks: 20 passed, 2 failed, in `
	if got := b.String(); !strings.HasPrefix(got, want) {
		t.Errorf("%s\nin place of\n%s", got, want)
	}
	text, err := os.ReadFile(x.JUnit)
	if err != nil {
		t.Fatal(err)
	}
	var back suites
	if err := xml.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if back.Tests != 22 || back.Failures != 2 || len(back.Suites) != 3 || back.Suites[1].Failures != 1 ||
		!bytes.Contains(text,
			[]byte(`<testcase classname="hairpin.pod.ClusterIP" name="pod on node-0 → ClusterIP → pod on `+
				`node-0, tcp, IPv4" time="0.000">`)) ||
		!bytes.Contains(text, []byte(`<failure message="i/o timeout">Not delivered: &lt;br-svc&gt; drops it.`)) {
		t.Errorf("%s", text)
	}
}
