package agent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hairpin/claims"
	"hairpin/lab"
	"hairpin/lab/demo"
	"hairpin/lab/probe"
)

// movingHost is a Service of policy Local whose endpoint is the host of the node whose address
// changes.
const movingHost = "movinghost"

// Addresses of the node whose address changes, IPv4 first.
var (
	firstAddresses  = []string{"172.18.0.4/16", "fc00:f853:ccd::4/64"}
	secondAddresses = []string{"172.18.0.14/16", "fc00:f853:ccd::14/64"}
)

// movingNode is a node whose addresses on the external network, or Ethernet address, change.
type movingNode struct {
	t       *testing.T
	g       *demo.Egress
	v       *viewer
	n       *lab.Node
	has     []string // addresses with their prefix lengths, IPv4 first
	started time.Time
}

// addressChanges: a node that carries an egress address gets other addresses, and another Ethernet
// address, while it serves. The host's addresses may change before or after the kubelet reports
// them.
func addressChanges(t *testing.T, g *demo.Egress) {
	l := g.Demo().Lab()
	m := &movingNode{t: t, g: g, v: newViewer(t, l), n: l.Node(demo.EgressStays), has: firstAddresses,
		started: time.Now()}
	// No other node may carry the address meanwhile.
	noError(t, g.Both(t.Context()))
	noError(t, errors.Join(g.Label(t.Context(), demo.EgressDies, false), g.Nodes(t.Context(), demo.EgressStays)))
	dual := corev1.IPFamilyPolicyRequireDualStack
	_, err := g.Demo().Client().CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: movingHost}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, IPFamilyPolicy: &dual,
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8081),
				NodePort: 30099}},
		},
	}, metav1.CreateOptions{})
	noError(t, err)
	m.endpoint()
	m.serves("before")
	m.host(secondAddresses)
	m.kubelet()
	m.serves("the host before the kubelet")
	m.has = firstAddresses
	m.kubelet()
	m.has = secondAddresses
	m.host(firstAddresses)
	m.serves("back, the kubelet before the host")

	before := strings.TrimSpace(sh(t, m.n, "ovs-vsctl --if-exists get Bridge br-ex other_config:hwaddr"))
	for _, mac := range []string{`"02:42:ac:12:00:14"`, before} {
		m.started = time.Now()
		sh(t, m.n, "ovs-vsctl set Bridge br-ex other_config:hwaddr='"+mac+"'")
		m.serves("Ethernet address " + mac)
	}
	noError(t, g.Label(t.Context(), demo.EgressDies, true))
}

// host changes the host's addresses, as an administrator does.
func (m *movingNode) host(to []string) {
	m.t.Helper()
	m.started = time.Now()
	// Without its primary address, a network loses the others, too.
	sh(m.t, m.n, fmt.Sprintf(`ip address del %s dev br-ex; ip address del %s dev br-ex
ip address add %s dev br-ex; ip address add %s dev br-ex nodad
ip route replace default via 172.18.0.1 dev br-ex; ip -6 route replace default via fc00:f853:ccd::1 dev br-ex`,
		m.has[0], m.has[1], to[0], to[1]))
	m.has = to
	m.endpoint()
}

// addresses returns the node's addresses without their prefix lengths.
func (m *movingNode) addresses() (list []string) {
	for _, p := range m.has {
		list = append(list, netip.MustParsePrefix(p).Addr().String())
	}
	return list
}

// kubelet writes the addresses to the node's status.
func (m *movingNode) kubelet() {
	m.t.Helper()
	m.started = time.Now()
	list := []map[string]string{{"type": "Hostname", "address": m.n.Name()}}
	for _, a := range m.addresses() {
		list = append(list, map[string]string{"type": "InternalIP", "address": a})
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": list}})
	noError(m.t, err)
	nodes := m.g.Demo().Client().CoreV1().Nodes()
	_, err = nodes.Patch(m.t.Context(), m.n.Name(), types.MergePatchType, body, metav1.PatchOptions{}, "status")
	noError(m.t, err)
}

// endpoint writes the EndpointSlices of the Service whose endpoint is the host.
func (m *movingNode) endpoint() {
	m.t.Helper()
	api, port, node, is := m.g.Demo().Client().DiscoveryV1().EndpointSlices("default"), int32(8081), m.n.Name(), true
	for i, a := range m.addresses() {
		family := []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}[i]
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: movingHost + "-" + strings.ToLower(string(family)),
				Labels: map[string]string{discoveryv1.LabelServiceName: movingHost}},
			AddressType: family, Ports: []discoveryv1.EndpointPort{{Port: &port}},
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{a}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &is}},
			},
		}
		_, err := api.Update(m.t.Context(), slice, metav1.UpdateOptions{})
		if err != nil {
			_, err = api.Create(m.t.Context(), slice, metav1.CreateOptions{})
		}
		noError(m.t, err)
	}
}

// serves waits until everything works at the node's addresses, within 25 s of the last change. A
// neighbor without an announcement sends a request after half a minute.
func (m *movingNode) serves(what string) {
	m.t.Helper()
	t, l := m.t, m.g.Demo().Lab()
	mac := strings.TrimSpace(sh(t, m.n, "ovs-vsctl get Bridge br-ex other_config:hwaddr"))
	is := func(part string, holds func() (bool, string)) {
		t.Helper()
		left := 25*time.Second - time.Since(m.started)/time.Duration(*slow)
		if took := eventually(t, max(left, time.Second), what+": "+part, holds); took > time.Second {
			t.Logf("%s: %s after %v", what, part, time.Since(m.started).Round(time.Millisecond))
		}
	}
	is("annotations", func() (bool, string) {
		n, err := m.g.Demo().Client().CoreV1().Nodes().Get(t.Context(), m.n.Name(), metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		gateway, hosts := n.Annotations["k8s.ovn.org/l3-gateway-config"], n.Annotations["k8s.ovn.org/host-cidrs"]
		ok := strings.Contains(gateway, strings.Trim(mac, `"`))
		for _, p := range slices.Concat(firstAddresses, secondAddresses) {
			has := slices.Contains(m.has, p)
			ok = ok && strings.Contains(gateway, `"`+p+`"`) == has && strings.Contains(hosts, `"`+p+`"`) == has
		}
		return ok, gateway + "\n" + hosts
	})
	reaches := func(from lab.Place, to netip.AddrPort, saw string) {
		t.Helper()
		for _, protocol := range []string{"tcp", "udp"} {
			if protocol == "udp" && to.Port() == 30099 {
				continue // of TCP only
			}
			is(fmt.Sprintf("%s from %s by %s", to, from.Name(), protocol), func() (bool, string) {
				a := lab.Get(t.Context(), from, probe.Request{Protocol: protocol, To: to, Timeout: time.Second})
				return a.Error == "" && (saw == "" || a.Saw.Addr().String() == saw),
					fmt.Sprintf("%s, seen as %s", a.Error, a.Saw)
			})
		}
	}
	at := func(a string, port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(a), port) }
	client, own := l.Host("client"), m.addresses()
	for i, pods := range [][]string{{"10.244.1.3", "10.244.2.3"}, {"fd00:10:244:1::3", "fd00:10:244:2::3"}} {
		outside := []string{"172.18.0.100", "fc00:f853:ccd::64"}[i]
		reaches(m.v.pods["pod-a1"], at(pods[1], 8080), pods[0])
		reaches(m.v.pods["pod-b1"], at(pods[0], 8080), pods[1])
		reaches(client, at(own[i], 30001), "") // of a pod of another node
		reaches(m.v.pods["pod-a1"], at(own[i], 30001), "")
		reaches(client, at(own[i], 30099), outside)
		reaches(m.v.pods["pod-a2"], at(own[i], 8081), []string{"172.18.0.3", "fc00:f853:ccd::3"}[i])
		reaches(m.v.pods["pod-b1"], at(outside, 9000), own[i])
	}
	reaches(m.v.pods["pod-a1"], at("172.18.0.100", 9000), egressAddress)
	is("no tunnel to another address", func() (bool, string) {
		out := sh(t, l.Node("node-a"), "ovs-ofctl --no-stats dump-flows "+claims.TunnelBridge+
			"; ovn-sbctl --bare --columns=ip list Encap")
		comma := func(r rune) bool { return unicode.IsSpace(r) || r == ',' }
		other := map[bool]string{true: "172.18.0.14", false: "172.18.0.4"}[own[0] == "172.18.0.4"]
		old := func(word string) bool { return word == other || strings.HasSuffix(word, "="+other) }
		return strings.Contains(out, own[0]) && !slices.ContainsFunc(strings.FieldsFunc(out, comma), old), out
	})
	t.Logf("%s: all after %v", what, time.Since(m.started).Round(time.Millisecond))
}
