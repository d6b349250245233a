package hostnet

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/claims"
	"hairpin/cluster"
)

// rulesAfter returns the rules of a new network namespace in which a shell script has run.
func rulesAfter(t *testing.T, script string) (list []cluster.HostRule) {
	t.Helper()
	if err := inside.Do(insidetest.NetNS(t), func() error {
		if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		var err error
		list, err = hostRules()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

// The machine's own rules are found, with the routes of their tables. Rules that every machine has,
// and Hairpin's, are not.
func TestHostRules(t *testing.T) {
	var got []string
	for _, r := range rulesAfter(t, fmt.Sprintf(`ip link add eth2 type veth peer name far
ip address add 10.10.2.3/24 dev eth2; ip link set eth2 up; ip link set far up
ip rule add pref %d from 10.244.1.3 lookup 85003
ip rule add pref 100 iif br-ex lookup 100; ip route add 10.9.0.0/24 via 10.10.2.100 table 100; ip route add default dev eth2 table 100
ip rule add pref 200 not from 10.0.0.0/8 to 192.0.2.0/24 fwmark 0x4/0xff lookup 200; ip route add unreachable default table 200
ip rule add pref 300 lookup main suppress_prefixlength 0
ip rule add pref 400 ipproto tcp lookup 100
ip rule add pref 500 lookup 300; ip -4 route add default via inet6 fe80::1 dev eth2 table 300
ip -6 rule add pref 100 from fd10::/64 prohibit`, claims.RulePriorityFirst)) {
		text := r.String()
		for _, x := range r.Routes {
			text += fmt.Sprintf("; %s via %s dev %s", x.To, x.Via, x.Dev)
		}
		got = append(got, text)
	}
	want := []string{
		"100: from all iif br-ex lookup 100; 0.0.0.0/0 via invalid IP dev eth2; 10.9.0.0/24 via " +
			"10.10.2.100 dev eth2",
		"100: from fd10::/64 unreachable, blackhole or prohibit",
		"200: not from 10.0.0.0/8 to 192.0.2.0/24 fwmark 0x4/0xff …",
		"300: from all lookup 254 suppress_prefixlength 0",
		"400: from all …",
		"500: from all …",
	}
	if !slices.Equal(got, want) {
		t.Errorf("found\n%q\nwant\n%q", got, want)
	}
}

// Of a family with many rules, the first are found, and one rule says that there are more. The
// other family's are found as well.
func TestManyHostRules(t *testing.T) {
	var got []string
	for _, r := range rulesAfter(t, `for i in $(seq 101 140); do ip rule add pref $i from 192.0.2.$i lookup 100; done
ip -6 rule add pref 100 from fd10::/64 prohibit`) {
		got = append(got, r.String())
	}
	want := []string{"100: from fd10::/64 unreachable, blackhole or prohibit"}
	for i := 101; i <= 115; i++ {
		want = append(want, fmt.Sprintf("%d: from 192.0.2.%d/32 lookup 100", i, i))
	}
	want = append(want, "116: from all …")
	if !slices.Equal(got, want) {
		t.Errorf("found\n%q\nwant\n%q", got, want)
	}
}
