package kubeapi_test

import (
	"testing"

	"k8s.io/client-go/rest"

	"hairpin/kubeapi"
)

// TestLeasesHaveNoLimit: the renewal of a Lease does not wait behind other requests of the client.
func TestLeasesHaveNoLimit(t *testing.T) {
	c, err := kubeapi.New(&rest.Config{Host: "127.0.0.1:1", QPS: 1, Burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	if c.Core.GetRateLimiter() == nil || c.Networking.GetRateLimiter() != c.Core.GetRateLimiter() {
		t.Error("the other groups do not share a limit")
	}
	if c.Coordination.GetRateLimiter() != nil {
		t.Error("Leases have a limit")
	}
}
