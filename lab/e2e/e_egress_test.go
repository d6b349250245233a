//go:build e2e

package e2e

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/lab"
	"hairpin/lab/cluster"
	"hairpin/lab/probe"
)

const egressManifest = `apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: egressip-e2e}
spec:
  egressIPs: [172.18.0.33, "fc00:f853:ccd::33"]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
  podSelector: {matchLabels: {app: client}}
`

// TestEgressIP uses an EgressIP as a user does: create it, see it in kubectl, drain its egress
// node, delete it.
func TestEgressIP(t *testing.T) {
	e := open(t)
	outside := e.Lab().Host(cluster.ClientName)
	const port = 9100
	stop, err := lab.Serve(e.Context(), outside, "outside", port)
	e.check(err)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	from := e.place(e.clientPod("node-a").Name)
	saw := func(to string) string {
		a := lab.Get(e.Context(), from, probe.Request{Protocol: "tcp",
			To: netip.AddrPortFrom(netip.MustParseAddr(to), port), Timeout: 3 * time.Second})
		if a.Error != "" {
			return a.Error
		}
		return a.Saw.Addr().String()
	}
	is := func(what string, want ...string) {
		t.Helper()
		for i, to := range []string{"172.18.0.100", "fc00:f853:ccd::64"} {
			got := ""
			took := e.until(what+": seen as "+want[i], time.Minute,
				func() (bool, error) { got = saw(to); return got == want[i], nil })
			t.Logf("%s: seen as %s after %s", what, got, took.Round(time.Millisecond))
		}
	}
	own := []string{saw("172.18.0.100"), saw("fc00:f853:ccd::64")}
	for _, n := range []string{"node-b", "node-c"} {
		e.kubectl("label", "node", n, "k8s.ovn.org/egress-assignable=")
		t.Cleanup(func() {
			if _, err := e.Kubectl(context.Background(), "", "label", "node", n,
				"k8s.ovn.org/egress-assignable-"); err != nil {
				t.Error(err)
			}
		})
	}
	e.apply(egressManifest)
	is("created", "172.18.0.33", "fc00:f853:ccd::33")
	carriers := func() []string {
		return strings.Fields(e.kubectl("get", "eip", "egressip-e2e", "-o", "jsonpath={.status.items[*].node}"))
	}
	first := carriers()
	if len(first) != 2 {
		t.Fatalf("the status has %v", first)
	}

	// Draining moves the address while its node lives: nothing fails.
	failed, asked := 0, 0
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
			}
			asked++
			if got := saw("172.18.0.100"); got != "172.18.0.33" {
				t.Logf("while draining: %s", got)
				failed++
			}
		}
	}()
	e.kubectl("cordon", first[0])
	t.Cleanup(func() {
		if _, err := e.Kubectl(context.Background(), "", "uncordon", first[0]); err != nil {
			t.Error(err)
		}
	})
	took := e.until("the addresses have left "+first[0], time.Minute,
		func() (bool, error) { return !slices.Contains(carriers(), first[0]), nil })
	is("cordoned", "172.18.0.33", "fc00:f853:ccd::33")
	close(done)
	<-ended
	t.Logf("%s was left after %s; %d of %d connections failed", first[0], took.Round(time.Millisecond), failed, asked)
	if failed > 0 {
		t.Error("connections failed while a node was left")
	}
	e.kubectl("delete", "eip", "egressip-e2e")
	is("deleted", own...)
}
