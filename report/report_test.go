package report

import "testing"

// During an upgrade, an agent of v0.1.0 still answers, with its names of some fields.
func TestOlderReport(t *testing.T) {
	r, err := Parse([]byte(`{"node": "node-a", "ready": true, "leaving": true, "neglected": "ovs-vswitchd hangs", "api": {"away": true},
		"doors": [{"for": "metrics", "address": "127.0.0.1:9100", "error": "in use"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if r.Degraded != "ovs-vswitchd hangs" || !r.Leaving || !r.API.Unreachable || len(r.Listeners) != 1 || r.Healthy() {
		t.Errorf("%+v", r)
	}
}
