package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"hairpin/lab"
	"hairpin/lab/probe"
)

// Names of what rejects objects of tenants.
const (
	byGuard  = "a problem on the Service: its other addresses work"
	bySlices = "a problem on the EndpointSlice: its other endpoints work"
	byOlder  = "a problem on the Service: the EgressIP is older"
	byNamer  = "a problem on the Service: the one with the endpoint is older"

	tenant   = "tenant"
	victim   = neighbour // pod-a1
	takePort = 4711      // of a Service that claims every address
)

// honestExternal returns an external address that a tenant may use.
func honestExternal(f family) netip.Addr {
	if f.name == "4" {
		return netip.MustParseAddr("203.0.113.66")
	}
	return netip.MustParseAddr("2001:db8:66::66")
}

// claim is one attempt of a tenant to take an address. Several run concurrently, so each has its
// own objects and addresses.
type claim struct {
	family
	number int
}

// name returns the name of one of its objects.
func (c claim) name(what string) string { return fmt.Sprintf("attack-%s-%d", what, c.number) }

// ip returns a cluster IP of the attacker's Services.
func (c claim) ip(n int) netip.Addr { return tenantIP(c.family, 10+2*c.number+n) }

// honest returns an external address that the tenant may use.
func (c claim) honest() netip.Addr {
	return nth(netip.PrefixFrom(honestExternal(c.family), honestExternal(c.family).BitLen()), c.number)
}

// tenantAttacks returns attacks of users who may create Services and EndpointSlices.
func tenantAttacks() []Attack {
	var list []Attack
	needsAPI := func(w *world) string {
		if _, ok := w.objects.(*kubeAPI); ok {
			return ""
		}
		return "needs API=" + Kubernetes
	}
	next := func(f family) claim { return claim{f, len(list)} }
	for _, path := range []string{"at its own address", "at its cluster IP"} {
		c := next(families()[0])
		list = append(list, Attack{Who: tenant, What: "claims the API server's address, for pods that use it " + path,
			By: byGuard, Group: "claims", Not: needsAPI,
			try: func(ctx context.Context, w *world) (outcome, error) { return w.takeAPI(ctx, c, path) }})
	}
	for _, f := range families() {
		add := func(what string, from []string, ask func(w *world) netip.AddrPort) {
			c := next(f)
			list = append(list, Attack{Who: tenant, What: what + " (IPv" + f.name + ")", By: byGuard, Group: "claims",
				try: func(ctx context.Context, w *world) (outcome, error) {
					to := ask(w)
					return w.take(ctx, c, to, from, to)
				}})
		}
		at := func(place string, port uint16) func(*world) netip.AddrPort {
			return func(w *world) netip.AddrPort { return netip.AddrPortFrom(w.endpoints[place].address(f), port) }
		}
		pods, all := []string{victim}, []string{victim, "host-a", clientName}
		add("claims another pod's address", append(slices.Clone(pods), "host-a"), at("pod-b1", podPort))
		add("claims a port of another Service's cluster IP", append(slices.Clone(pods), "host-a"),
			func(w *world) netip.AddrPort {
				return netip.AddrPortFrom(ofFamily(w.services["podlocal"].clusterIPs, f), takePort)
			})
		add("claims the kubelet's port of a node", all, at("host-b", 10250))
		add("claims the ssh port of a node", all, at("host-a", 22))
		add("claims a join address", pods,
			func(*world) netip.AddrPort { return netip.AddrPortFrom(nth(f.joins, 1), takePort) })
		add("claims a transit address", pods,
			func(*world) netip.AddrPort { return netip.AddrPortFrom(nth(f.transits, 2), takePort) })
		if f.name == "6" { // the API takes no link-local address
			add("claims a masquerade address", []string{"host-a"},
				func(*world) netip.AddrPort { return netip.AddrPortFrom(nth(f.masquerade, 4), takePort) })
		}
		for _, path := range []string{"at its own address", "by its Service"} {
			c := next(f)
			list = append(list, Attack{Who: tenant,
				What: fmt.Sprintf("claims the external endpoint of an older Service, for pods that use it %s (IPv%s)", path,
					f.name), By: byNamer, Group: "claims",
				try: func(ctx context.Context, w *world) (outcome, error) { return w.takeServer(ctx, c, path) }})
		}
		c, d := next(f), claim{f, len(list) + 1}
		list = append(list,
			Attack{Who: tenant, What: "claims the address of an EgressIP (IPv" + f.name + ")", By: byOlder,
				Group: "claims",
				try:   func(ctx context.Context, w *world) (outcome, error) { return w.takeEgressIP(ctx, c) }},
			Attack{Who: tenant, What: "names addresses that cannot be endpoints (IPv" + f.name + ")",
				By: bySlices, Group: "claims",
				try: func(ctx context.Context, w *world) (outcome, error) { return w.impossible(ctx, d) }})
	}
	return list
}

// tenantService returns a Service of the attacker with external addresses.
func tenantService(name string, f family, clusterIP netip.Addr, port uint16, external ...netip.Addr) string {
	spec := ""
	if len(external) > 0 {
		spec = fmt.Sprintf("  externalIPs: %s\n", quotedList(external))
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec:
  type: ClusterIP
  clusterIP: %q
  clusterIPs: [%[2]q]
  ipFamilies: [IPv%s]
  ports: [{name: x, port: %d, protocol: TCP}]
%s`, name, clusterIP, f.name, port, spec)
}

func tenantSlice(service string, f family, port uint16, endpoints ...netip.Addr) string {
	text := fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, namespace: default, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv%s
ports: [{name: x, port: %d, protocol: TCP}]
endpoints:
`, service, f.name, port)
	for _, a := range endpoints {
		text += fmt.Sprintf("- {addresses: [%q], conditions: {ready: true}}\n", a)
	}
	return text
}

func quotedList(list []netip.Addr) string {
	text := "["
	for i, a := range list {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%q", a)
	}
	return text + "]"
}

// tenantIP returns the n-th cluster IP of the attacker.
func tenantIP(f family, n int) netip.Addr {
	return nth(netip.PrefixFrom(f.unallocated, f.unallocated.BitLen()), n)
}

func (w *world) asks(ctx context.Context, from string, to netip.AddrPort) probe.Answer {
	return lab.Get(ctx, w.endpoints[from].place, probe.Request{Protocol: "tcp", To: to, Timeout: w.longer(time.Second)})
}

// answered waits until a server answers a client.
func (w *world) answered(ctx context.Context, from, server string, to netip.AddrPort) error {
	return w.until(ctx, fmt.Sprintf("%s at %s, from %s", server, to, from), func() error {
		if a := w.asks(ctx, from, to); a.Name != server {
			return fmt.Errorf("%s %s", a.Name, a.Error)
		}
		return nil
	})
}

// take creates a Service of the attacker that claims an address and port, beside a legitimate
// address. It checks which server replies at the claimed one.
func (w *world) take(ctx context.Context, c claim, wants netip.AddrPort, from []string,
	asked netip.AddrPort) (out outcome, err error) {
	remove, err := w.putAll(ctx, tenantSlice(c.name("taker"), c.family, podPort,
		w.endpoints[attacker].address(c.family)),
		tenantService(c.name("taker"), c.family, c.ip(0), wants.Port(), wants.Addr(), c.honest()))
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := w.answered(ctx, victim, attacker, netip.AddrPortFrom(c.honest(), wants.Port())); err != nil {
		return outcome{}, err
	}
	for _, x := range from {
		// Agents may see the Service before they see what it conflicts with.
		for end := time.Now().Add(w.longer(2 * time.Second)); w.asks(ctx, x, asked).Name == attacker; {
			if time.Now().After(end) || ctx.Err() != nil {
				return takenWith("%s asks %s, and %s answers", x, asked, attacker), nil
			}
		}
	}
	return refusedWith("%s does not answer at %s, but at its other address", attacker, asked), nil
}

func (w *world) takeAPI(ctx context.Context, c claim, path string) (outcome, error) {
	api, err := netip.ParseAddrPort(w.objects.(*kubeAPI).rest().Get().URL().Host)
	if err != nil {
		return outcome{}, fmt.Errorf("the API server's address: %w", err)
	}
	if path == "at its own address" {
		return w.take(ctx, c, api, []string{victim, "host-a"}, api)
	}
	return w.take(ctx, c, api, []string{victim, "host-a"}, netip.MustParseAddrPort("10.96.0.1:443"))
}

// takeServer creates a Service whose endpoint is an external server, then one that claims the
// server's address and port.
func (w *world) takeServer(ctx context.Context, c claim, path string) (out outcome, err error) {
	server := netip.AddrPortFrom(w.endpoints[clientName].address(c.family), clientPort)
	service := netip.AddrPortFrom(c.ip(1), 80)
	remove, err := w.putAll(ctx, tenantSlice(c.name("server"), c.family, server.Port(), server.Addr()),
		tenantService(c.name("server"), c.family, service.Addr(), service.Port()))
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := w.answered(ctx, victim, clientName, service); err != nil {
		return outcome{}, err
	}
	if err := w.tick(ctx); err != nil {
		return outcome{}, err
	}
	asked := service
	if path == "at its own address" {
		asked = server
	}
	if out, err = w.take(ctx, c, server, []string{victim}, asked); err != nil || out.taken {
		return out, err
	}
	return out, w.answered(ctx, victim, clientName, asked)
}

// takeEgressIP creates an EgressIP that selects no pods, then a Service that claims its address.
func (w *world) takeEgressIP(ctx context.Context, c claim) (out outcome, err error) {
	base := w.endpoints["host-a"].address(c.family).AsSlice()
	base[len(base)-1] = 0xee
	address, _ := netip.AddrFromSlice(base)
	remove, err := w.put(ctx, fmt.Sprintf(`
apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: %s}
spec: {egressIPs: [%q], namespaceSelector: {matchLabels: {nobody: has-this}}}
`, c.name("older"), address))
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	to := netip.AddrPortFrom(address, takePort)
	return w.take(ctx, c, to, []string{victim, "host-a"}, to)
}

// impossible names invalid endpoints beside a valid one, which must get all connections.
func (w *world) impossible(ctx context.Context, c claim) (out outcome, err error) {
	router := w.gateway(c.family)
	good := w.endpoints[attacker].address(c.family)
	bad := []netip.Addr{router, router.Next(), ofFamily(w.services["podlocal"].clusterIPs, c.family), nth(c.joins, 2),
		nth(c.transits, 2)}
	service := netip.AddrPortFrom(c.ip(0), 80)
	remove, err := w.putAll(ctx, tenantSlice(c.name("endpoints"), c.family, podPort,
		append(slices.Clone(bad), good)...),
		tenantService(c.name("endpoints"), c.family, service.Addr(), 80))
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := w.answered(ctx, victim, attacker, service); err != nil {
		return outcome{}, err
	}
	const times = 30
	lost := 0 // half of them, if one other endpoint is used; a busy machine takes seconds for one
	for range times {
		a := w.asks(ctx, victim, service)
		if a.Error != "" {
			lost++
		}
		if lost > times/5 || a.Error == "" && a.Name != attacker {
			return takenWith("connections went to some of %v: %s %s", bad, a.Name, a.Error), nil
		}
	}
	return refusedWith("of %d connections, none went to another endpoint", times), nil
}
