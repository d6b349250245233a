package demo

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"hairpin/lab"
	"hairpin/lab/probe"
)

// proves runs `hairpin explain --send` on a node. Packets from its host, from a pod and from an
// external client must do what their walks say. A foreign rule, unknown to a walk, must show as the
// place where the packet is lost.
func proves(t *testing.T, d *Demo) {
	n := d.lab.Node("node-a")
	for _, c := range []struct {
		args string
		well bool
		want []string
	}{
		{"host/node-a svc/default/hostself", true,
			[]string{"answered after", "host/node-a saw 169.254.169.1:", "seen: conntrack has the entry", "packets\n",
				"The packet did what the walk says."}},
		{"host/node-a svc/default/hostself --proto udp --family 6", true,
			[]string{"SENT udp [fc00:f853:ccd::3]:", "host/node-a saw [fd69::1]:",
				"The packet did what the walk says."}},
		{"host/node-a svc/default/podlocal --node-port", true,
			[]string{"pod/default/pod-a1 saw 100.64.0.2:", "The packet did what the walk says."}},
		{"pod/default/pod-a2 svc/default/podlocal", true,
			[]string{"pod/default/pod-a1 saw 10.244.1.4:", "The packet did what the walk says."}},
		{"pod/default/pod-a2 svc/default/hostself --proto udp", true,
			[]string{"host/node-a saw 10.244.1.4:", "The packet did what the walk says."}},
		{"host/node-a svc/default/nobody", false, []string{"refused after", "The packet did what the walk says."}},
	} {
		proof(t, n, c.args, c.well, c.want...)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { // an external client
		defer close(ended)
		for ctx.Err() == nil {
			lab.Get(ctx, d.lab.Host(clientName),
				probe.Request{Protocol: "tcp", To: netip.MustParseAddrPort("172.18.0.3:30003"), Timeout: time.Second})
		}
	}()
	proof(t, n, "outside/172.18.0.100 svc/default/hostself --via node-a --timeout 30s", true,
		"WATCHED tcp from outside", "host/node-a saw 169.254.169.1:", "The packet did what the walk says.")
	stop()
	<-ended
	const foreign = "table=30,priority=40000,ip"
	for _, change := range [][]string{{"ovs-ofctl", "add-flow", "br-svc", foreign + ",actions=drop"},
		{"ovs-ofctl", "--strict", "del-flows", "br-svc", foreign}} {
		if _, err := n.Exec(t.Context(), change...); err != nil {
			t.Fatal(err)
		}
		if change[1] == "add-flow" {
			proof(t, n, "host/node-a svc/default/hostself", false, "no answer after",
				"DIFFERENT: host/node-a saw nothing of it",
				"DIFFERENT: node-a: br-svc SNAT: the flow counted no packet")
		}
	}
	proof(t, n, "host/node-a svc/default/hostself", true, "The packet did what the walk says.")
}

func proof(t *testing.T, n *lab.Node, args string, well bool, want ...string) {
	t.Helper()
	out, err := n.Exec(t.Context(), append([]string{"hairpin", "explain", "--send", "-v"}, strings.Fields(args)...)...)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	for _, w := range want {
		if (err == nil) != well || !strings.Contains(out, w) {
			t.Errorf("explain --send %s: %v, and it does not say %q:\n%s", args, err, w, out)
			return
		}
	}
}
