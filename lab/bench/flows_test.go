package bench

import (
	"io"
	"net/netip"
	"testing"
	"time"

	"hairpin/lab"
	"hairpin/lab/probe"
)

// Pods on the bridge of flows, as the plan has them, reach a Service, each other, and themselves by the Service.
func TestPodsByFlows(t *testing.T) {
	w := &world{opt: Options{Out: io.Discard, Slow: 2}, begin: time.Now(), lab: lab.Start(t, lab.Config{})}
	s, err := w.flows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ways, err := w.flowsWays(t.Context(), s) // pod-0 is the endpoint
	if err != nil {
		t.Fatal(err)
	}
	direct := netip.AddrPortFrom(s.pods[0].IPs()[0], inside)
	for name, c := range map[string]struct {
		from int
		to   netip.AddrPort
		saw  string
	}{
		"pod to Service":           {1, ways[0].serve, s.pods[1].IPs()[0].String()},
		"pod to pod":               {1, direct, s.pods[1].IPs()[0].String()},
		"pod to itself by Service": {0, ways[0].serve, "169.254.169.5"},
	} {
		if err := w.works(t.Context(), s.pods[c.from], c.to); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		a := lab.Get(t.Context(), s.pods[c.from], probe.Request{Protocol: "tcp", To: c.to, Timeout: 10 * time.Second})
		if a.Error != "" || a.Name != "pod-0" || a.Saw.Addr().String() != c.saw {
			t.Errorf("%s: %+v, want client %s", name, a, c.saw)
		}
	}
}
