package cni_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"hairpin/claims"
	"hairpin/lab"
	"hairpin/lab/probe"
)

// TestHostPorts: host ports of pods are restored after `nft flush ruleset`, removed with the pod,
// and reported if they cannot be restored.
func TestHostPorts(t *testing.T) {
	w := newWorld(t)
	w.manifest("node-a.yaml", nodeManifest(1, usualCIDRs(1)))
	n := w.node(1)
	plugin := n.Path("/opt/cni/bin/" + claims.PortmapPlugin)
	must(t, lab.BuildPortmap(t.Context(), plugin))
	const ports = `"runtimeConfig": {"portMappings": [
		{"hostPort": 8081, "containerPort": 8080, "protocol": "tcp"}, {"hostPort": 8081, "containerPort": 8080, "protocol": "udp"}]}`
	must(t, n.WriteFile("/etc/cni/net.d/10-hairpin.conflist",
		fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "hairpin", "plugins": [
		{"type": "hairpin", %[2]s}, {"type": %[1]q, "backend": "nftables", %[2]s}]}`, claims.PortmapPlugin, ports)))
	w.start(n)
	w.ready(n)
	pod, err := n.AddPod(t.Context(), lab.PodConfig{Namespace: "default", Name: "web", UID: "uid-web"})
	must(t, err)
	stop, err := lab.Serve(t.Context(), pod, "web", 8080)
	must(t, err)
	t.Cleanup(func() { must(t, stop()) })
	rules := func() int {
		return strings.Count(sh(t, n, "nft list ruleset"), `comment "`+pod.Sandbox+`"`)
	}
	answers := func(when string) {
		t.Helper()
		for _, address := range []string{"172.18.0.3", "fc00:f853:ccd::3"} {
			for _, protocol := range []string{"tcp", "udp"} {
				to := netip.AddrPortFrom(netip.MustParseAddr(address), 8081)
				eventually(t, 10*time.Second, when+": "+protocol+" "+to.String(), func() error {
					a := lab.Get(t.Context(), n, probe.Request{Protocol: protocol, To: to, Timeout: time.Second})
					if a.Error != "" {
						return fmt.Errorf("%s", a.Error)
					}
					return nil
				})
			}
		}
	}
	answers("at first")
	complete := rules()
	for _, script := range []string{
		"nft flush ruleset",
		"nft delete table ip cni_hostport",
		`nft delete rule ip6 cni_hostport hostports handle $(nft -a list chain ip6 cni_hostport hostports | sed -n '/udp/s/.*handle //p')`,
	} {
		sh(t, n, script)
		answers(script)
		if got := rules(); got != complete {
			t.Errorf("after %s there are %d rules of the pod, not %d", script, got, complete)
		}
	}
	sh(t, n, "nft flush ruleset")
	must(t, n.Kill(t.Context(), agent, 9))
	w.start(n)
	answers("flushed without an agent")

	must(t, os.Remove(plugin))
	sh(t, n, "nft flush ruleset")
	eventually(t, 20*time.Second, "the status names the pod", func() error {
		out, err := n.Exec(t.Context(), "hairpin", "status")
		if err == nil || !strings.Contains(out, "host ports of Pod/default/web are lost") {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	must(t, lab.BuildPortmap(t.Context(), plugin))
	answers("the plugin is back")

	// The rules may have been restored between the runtime's DEL of portmap and Hairpin's. On a
	// busy node, portmap may exceed its time limit once. Then the runtime repeats DEL.
	must(t, os.Rename(plugin, plugin+".real"))
	must(t, n.WriteFile("/opt/cni/bin/"+claims.PortmapPlugin,
		"#!/bin/sh\nmkdir /tmp/busy 2>/dev/null && sleep 6\nexec /opt/cni/bin/"+claims.PortmapPlugin+".real\n"))
	must(t, os.Chmod(plugin, 0o755))
	eventually(t, 30*time.Second, "DEL succeeds", func() error {
		return w.plugin(n, "DEL", netconf(n), map[string]string{
			"CNI_CONTAINERID": pod.Sandbox, "CNI_IFNAME": "eth0", "CNI_NETNS": "",
			"CNI_ARGS": "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web"}).err
	})
	if got := rules(); got > 0 {
		t.Errorf("%d rules are left of the pod", got)
	}
}
