package agent_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// deadConnections: the packets of the open connections to the API server are lost, those of new
// ones are not. That happens when the address of an API server moves from a machine that died, or
// when a firewall forgets connections. A watch sends nothing that would fail.
func (o *operated) deadConnections(t *testing.T) {
	p := o.on(t)
	server := o.config.Address.String()
	ports := strings.Fields(sh(t, p.node,
		"ss -tnH state established dst "+server+` | awk '{sub(/.*:/, "", $3); print $3}'`))
	if len(ports) == 0 {
		t.Fatal("no connection to the API server")
	}
	lose := func(hook, address, port string) string {
		return fmt.Sprintf("chain %s { type filter hook %[1]s priority -400; ip %s %s tcp %s { %s } drop; }\n", hook,
			address, server, port, strings.Join(ports, ", "))
	}
	sh(t, p.node, "nft 'table inet lost {\n"+lose("input", "saddr", "dport")+lose("output", "daddr", "sport")+"}'")
	defer sh(t, p.node, "nft delete table inet lost")
	p.patchNode(`{"spec":{"taints":[{"key":"ToBeDeletedByClusterAutoscaler","value":"1","effect":"NoSchedule"}]}}`)
	took := eventually(t, slack*4*time.Second, "the agent sees a change", func() (bool, string) {
		code, _, text := curl(t.Context(), p.client, "http://172.18.0.3:10256/healthz")
		return code == http.StatusServiceUnavailable, text
	})
	t.Logf("the agent sees a change after %.1f s; its connections were from ports %s", took.Seconds(), ports)
	p.patchNode(`{"spec":{"taints":null}}`)
	p.answers("stays", "/healthz", 10256, http.StatusOK)
}
