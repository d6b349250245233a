package cluster

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
)

// The machine of a node gets other addresses, and keeps its default routes, also while its bridge
// has no carrier, as during a restart of Open vSwitch.
func TestRenumber(t *testing.T) {
	script := renumberScript(
		[]netip.Prefix{netip.MustParsePrefix("172.18.0.4/16"), netip.MustParsePrefix("fc00:f853:ccd::4/64")},
		[]netip.Prefix{netip.MustParsePrefix("172.18.0.54/16"), netip.MustParsePrefix("fc00:f853:ccd::36/64")})
	err := inside.Do(insidetest.NetNS(t), func() error {
		for _, s := range []string{
			"ip link add br-ex type veth peer name far; ip link set br-ex up\n" +
				"ip address add 172.18.0.4/16 dev br-ex; ip address add fc00:f853:ccd::4/64 dev br-ex nodad\n" +
				"ip route add default via 172.18.0.1 dev br-ex\n" +
				"ip -6 route add default via fc00:f853:ccd::1 dev br-ex",
			script,
		} {
			if out, err := exec.Command("sh", "-ec", s).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
		}
		out, err := exec.Command("sh", "-c", "ip route; ip -6 route; ip address show dev br-ex").Output()
		for _, want := range []string{"default via 172.18.0.1 dev br-ex", "default via fc00:f853:ccd::1 dev br-ex",
			"inet 172.18.0.54/16", "inet6 fc00:f853:ccd::36/64"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
