package store_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"

	"hairpin/cluster"
)

// TestReadSnapshot: a Snapshot with every kind of object is read as it was written.
func TestReadSnapshot(t *testing.T) {
	policy := networkPolicy(t, `{ingress: [{from: [{podSelector: {}}, {ipBlock: {cidr: 10.0.0.0/8}}]}]}`)
	s := storeOf(node("n", good), pod("p", "n", "10.244.0.5"), egressIP("e", "10.0.0.1"), service("web", "10.96.0.1"),
		namespace("default", nil), policy, &networkingv1.ServiceCIDR{}).Snapshot()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	again, err := cluster.ReadSnapshot(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s, again, plain()); diff != "" {
		t.Errorf("written (-), read (+):\n%s", diff)
	}
	for _, broken := range []string{`{"EgressIPs":[null]}`, `{"Pods":[{"IPs":[""]}]}`,
		`{"Policies":[{"Ingress":{"Rules":[{"Peers":[{"Blocks":[""]}]}]}}]}`} {
		if _, err := cluster.ReadSnapshot([]byte(broken)); err == nil || !strings.Contains(err.Error(), "[0] is ") {
			t.Errorf("%s: %v", broken, err)
		}
	}
}
