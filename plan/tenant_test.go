package plan_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/plan"
)

// withPorts returns a Service with one port for each name, all with the same endpoint.
func withPorts(name, ip string, names ...string) (list []*cluster.Frontend) {
	for i, port := range names {
		f := frontend(name, netip.AddrPortFrom(addr(ip), uint16(1000+i)).String(), 0, "10.244.1.3:8080")
		f.PortName = port
		list = append(list, f)
	}
	return list
}

// collide are names of ports of default/tenant with the same hash as default/db.
const collide = `brfzba eqhqga xz3yka zc40na xxxuqa any8qa z3gxua e84dwa ba1uza nqz91a cka72a mux14a z2l95a d1uc9a we66fb
	pkdnhb rgzqib mm3rjb qerwjb jq59nb te0lob aryjpb yp42pb zp3vtb hnh3tb nxx4vb kt80xb b4oq1b hdk32b cxw07b lor57b p9np8b
	ljd28b ujw6ac nxzvbc enrxec vw9wfc skd3ic egm2mc nykaoc fy4goc jzd5oc csiepc ca61rc knsjtc gb8xtc deh4tc wvvpvc h4fmxc
	q7m6xc t3giyc clsmyc g92tyc zi0t1c esqb2c fz2v5c siz97c uvz0cd e9u2dd b1lzld ts2end skbsnd n6z9nd r1s7qd`

// TestPortNamesTakeNoGroup: an older Service takes no group from a younger one, also if its port
// names have the hash of the younger one.
func TestPortNamesTakeNoGroup(t *testing.T) {
	victim := frontend("db", "10.96.0.9:80", 0, "10.244.1.3:8080")
	victim.Created = time.Unix(2000, 0)
	names := strings.Fields(collide)
	s := byEngine(snapshot(node("node-a", 1, 3), victim, withPorts("tenant", "10.96.0.8", names...)), "node-a", true)
	state, problems := plan.Node(s, "node-a")
	if len(problems) > 0 || state.Bridge.Groups.Len() != 1+len(names) {
		t.Errorf("%d groups for %d ports, problems %v", state.Bridge.Groups.Len(), 1+len(names), problems)
	}
}
