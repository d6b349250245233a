package agent_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/lab"
)

var isolatedPods = flag.Int("isolation.pods", 60, "how many pods send at once, in TestNeverOpen")

// isolated is a node with a few addresses for pods, so that each is soon used again, and programs
// that count what arrives.
type isolated struct {
	*operated
	fast    kubernetes.Interface // without a limit of requests
	servers []netip.AddrPort     // of open receivers
	strict  netip.AddrPort       // of a pod that accepts friends only

	mu      sync.Mutex
	arrived map[string]int       // by receiver and message
	first   map[string]time.Time // when the first of them came
	story   map[string][]string  // what happened to a pod, by name
}

// tell records what happened to a pod.
func (i *isolated) tell(name, what string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.story[name] = append(i.story[name], time.Now().Format("04:05.000000 ")+what)
}

const (
	isolationPort = 9000
	// isolationFrom is the source port of all senders, so that conntrack remembers the connection
	// of a former pod with the same address.
	isolationFrom = 9001
)

func startIsolated(t *testing.T, pods string) *isolated {
	t.Helper()
	i := &isolated{operated: startOperatedWith(t, pods), arrived: map[string]int{},
		first: map[string]time.Time{}, story: map[string][]string{}}
	i.connect()
	return i
}

// connect makes the client of the API server, which may be another one than before.
func (i *isolated) connect() {
	i.t.Helper()
	config, err := i.server.RESTConfig()
	noError(i.t, err)
	config.QPS = -1
	i.fast, err = kubernetes.NewForConfig(config)
	noError(i.t, err)
}

// receive counts messages that arrive in a place, under a name.
func (i *isolated) receive(at lab.Place, name string) {
	i.t.Helper()
	noError(i.t, i.receiveUntil(i.t.Context(), at, name))
}

func (i *isolated) receiveUntil(ctx context.Context, at lab.Place, name string) error {
	var c *net.UDPConn
	err := lab.Do(at, func() (err error) {
		c, err = net.ListenUDP("udp", &net.UDPAddr{Port: isolationPort})
		return err
	})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = c.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			i.mu.Lock()
			key := name + " " + string(buf[:n])
			if i.arrived[key]++; i.arrived[key] == 1 {
				i.first[key] = time.Now()
			}
			i.mu.Unlock()
		}
	}()
	return nil
}

// got returns the number of messages that a receiver has from senders with a name prefix.
func (i *isolated) got(receiver, sender string) (n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for k, c := range i.arrived {
		if strings.HasPrefix(k, receiver+" "+sender) {
			n += c
		}
	}
	return n
}

// send sends a message to each address until ctx ends, as often as it can, from before the place
// has an address. It returns how many were sent.
func send(ctx context.Context, at lab.Place, message string, every time.Duration,
	to func() []netip.AddrPort) (sent *atomic.Int64, err error) {
	var c *net.UDPConn
	err = lab.Do(at, func() (err error) {
		c, err = net.ListenUDP("udp", &net.UDPAddr{Port: isolationFrom})
		return err
	})
	if err != nil {
		return nil, err
	}
	sent = &atomic.Int64{}
	go func() {
		defer func() { _ = c.Close() }()
		for ctx.Err() == nil {
			for _, a := range to() {
				if _, err := c.WriteToUDPAddrPort([]byte(message), a); err == nil {
					sent.Add(1)
				}
			}
			time.Sleep(every)
		}
	}()
	return sent, nil
}

// object creates a pod's object, and a policy that isolates the pod if it names a direction.
func (i *isolated) object(ctx context.Context, name, app string, isolate ...networkingv1.PolicyType) (*corev1.Pod,
	error) {
	if len(isolate) > 0 {
		_, err := i.fast.NetworkingV1().NetworkPolicies("default").Create(ctx, &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{
				MatchLabels: map[string]string{"name": name}}, PolicyTypes: isolate},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
	}
	return i.fast.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app, "name": name}},
		Spec:       corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
}

// standing adds a pod that stays, and its object if there is none.
func (i *isolated) standing(name, app string, isolate ...networkingv1.PolicyType) *lab.Pod {
	i.t.Helper()
	ctx := i.t.Context()
	o, err := i.fast.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		o, err = i.object(ctx, name, app, isolate...)
	}
	noError(i.t, err)
	p, err := i.node.AddPod(ctx, lab.PodConfig{Namespace: "default", Name: name, UID: string(o.UID)})
	noError(i.t, err)
	return p
}

// serveOutside makes the client of the external network the only server.
func (i *isolated) serveOutside() {
	i.t.Helper()
	i.receive(i.client, "outside")
	for _, a := range addressesOf(i.client) {
		i.servers = append(i.servers, netip.AddrPortFrom(a, isolationPort))
	}
}

// sender adds a pod that sends to the servers from before ADD, until the test ends.
func (i *isolated) sender(name string, isolate ...networkingv1.PolicyType) (p *lab.Pod, sent *atomic.Int64,
	err error) {
	ctx := i.t.Context()
	o, err := i.object(ctx, name, name, isolate...)
	if err != nil {
		return nil, nil, err
	}
	p, err = i.node.AddPodWith(ctx, lab.PodConfig{Namespace: "default", Name: name, UID: string(o.UID)},
		func(p *lab.Pod) (err error) {
			sent, err = send(ctx, p, name, 200*time.Microsecond, func() []netip.AddrPort { return i.servers })
			return err
		})
	return p, sent, err
}

var (
	isolateIngress = networkingv1.PolicyTypeIngress
	isolateEgress  = networkingv1.PolicyTypeEgress
)

// populate adds the pods that stay: "open" receives from all, "strict" from friends, "closed" may
// not send and always tries, "prober" sends to all addresses of pods. They end with ctx.
func (i *isolated) populate(ctx context.Context) {
	i.t.Helper()
	open, strict, closed, prober := i.standing("open", "open"), i.standing("strict", "strict", isolateIngress),
		i.standing("closed", "closed", isolateEgress), i.standing("prober", "open")
	i.servers = nil
	for _, a := range slices.Concat(open.IPs(), addressesOf(i.client)) {
		i.servers = append(i.servers, netip.AddrPortFrom(a, isolationPort))
	}
	i.strict = netip.AddrPortFrom(strict.IPs()[0], isolationPort)
	noError(i.t, i.receiveUntil(ctx, open, "open"))
	noError(i.t, i.receiveUntil(ctx, strict, "strict"))
	noError(i.t, i.receiveUntil(ctx, i.client, "outside"))
	every := func(list []netip.AddrPort) func() []netip.AddrPort { return func() []netip.AddrPort { return list } }
	_, err := send(ctx, closed, "closed", 2*time.Millisecond, every(append(slices.Clone(i.servers), i.strict)))
	noError(i.t, err)
	var pods []netip.AddrPort
	for a, range_ := netip.MustParseAddr("10.244.1.3"), netip.MustParsePrefix("10.244.1.0/28"); range_.Contains(a); {
		pods = append(pods, netip.AddrPortFrom(a, isolationPort))
		a = a.Next()
	}
	_, err = send(ctx, prober, "prober", 2*time.Millisecond, every(pods))
	noError(i.t, err)
	eventually(i.t, 20*time.Second, "the prober reaches an open pod", func() (bool, string) {
		return i.got("open", "prober") > 0, fmt.Sprint(i.arrived)
	})
}

func addressesOf(h *lab.Host) (list []netip.Addr) {
	for _, p := range h.Addresses() {
		list = append(list, p.Addr())
	}
	return list
}

// Kinds of pods that live for a moment.
var isolationKinds = []string{
	"denied",   // may not send, by a policy that was written just before
	"isolated", // may not receive, by such a policy
	"unlisted", // may not send to "strict"
	"friend",   // may
	"free",     // no policy selects it
}

// live adds a pod of a kind, which sends from before ADD, and removes it again. It tries ADD again
// as a kubelet does. Its messages begin with its name. It returns false if ctx ended first.
func (i *isolated) live(ctx context.Context, r *rand.Rand, kind, name string) bool {
	app, isolate := "other", []networkingv1.PolicyType(nil)
	switch kind {
	case "denied":
		isolate = append(isolate, isolateEgress)
	case "isolated":
		isolate = append(isolate, isolateIngress)
	case "friend":
		app = "friend"
	}
	var object *corev1.Pod
	if !i.again(ctx, name+": object", func() (err error) {
		i.forget(ctx, name)
		object, err = i.object(ctx, name, app, isolate...)
		return err
	}) {
		return false
	}
	inner, stop := context.WithCancel(ctx)
	defer stop()
	var p *lab.Pod
	var sent *atomic.Int64
	added := i.again(ctx, name+": ADD", func() (err error) {
		i.tell(name, "ADD")
		p, err = i.node.AddPodWith(ctx, lab.PodConfig{Namespace: "default", Name: name, UID: string(object.UID)},
			func(p *lab.Pod) (err error) {
				if err = i.receiveUntil(inner, p, name); err == nil {
					sent, err = send(inner, p, name, 200*time.Microsecond,
						func() []netip.AddrPort { return append(slices.Clone(i.servers), i.strict) })
				}
				return err
			})
		return err
	})
	i.tell(name, fmt.Sprintf("added: %v", added))
	if !added {
		return false
	}
	await := func(what string, done func() bool) {
		for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
			if ctx.Err() != nil {
				return
			}
			if time.Now().After(end) {
				i.t.Errorf("nothing of %s %s, of %d messages", name, what, sent.Load())
				return
			}
		}
	}
	has := func(receiver string) {
		await("arrives at "+receiver, func() bool { return i.got(receiver, name) > 0 })
	}
	switch kind {
	case "friend":
		has("strict")
	case "free", "unlisted", "isolated":
		has("open")
		has("outside")
	}
	time.Sleep(time.Duration(r.IntN(40)) * time.Millisecond)
	await("is sent", func() bool { return sent.Load() > 0 })
	objectFirst := r.IntN(2) == 0 // as if deleted by force
	if objectFirst {
		i.tell(name, "object deleted")
		_ = i.fast.CoreV1().Pods("default").Delete(ctx, name, *metav1.NewDeleteOptions(0)) // or forget does it
	}
	i.again(ctx, name+": DEL", func() error { return p.Delete(context.WithoutCancel(ctx)) })
	i.tell(name, "removed")
	stop()
	return i.again(ctx, name+": forget", func() error { i.forget(ctx, name); return nil })
}

// forget deletes the objects of a pod that lived for a moment, if the API server answers.
func (i *isolated) forget(ctx context.Context, name string) {
	_ = i.fast.CoreV1().Pods("default").Delete(ctx, name, *metav1.NewDeleteOptions(0))
	_ = i.fast.NetworkingV1().NetworkPolicies("default").Delete(ctx, name, *metav1.NewDeleteOptions(0))
}

// again tries until it succeeds.
func (i *isolated) again(ctx context.Context, what string, try func() error) bool {
	begin, last := time.Now(), error(nil)
	for ctx.Err() == nil {
		if last = try(); last == nil {
			return true
		}
		if time.Since(begin) > 2*time.Minute {
			i.t.Errorf("%s: not within two minutes: %v", what, last)
			return false
		}
		time.Sleep(50 * time.Millisecond)
	}
	return false
}

// lives runs pods of all kinds, a few at a time, until count have lived.
func (i *isolated) lives(ctx context.Context, seed uint64, next *atomic.Int64, count int64) {
	var lanes sync.WaitGroup
	for lane := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, lane))
		lanes.Go(func() {
			for n := next.Add(1); n <= count && ctx.Err() == nil && !i.t.Failed(); n = next.Add(1) {
				kind := isolationKinds[int(n)%len(isolationKinds)]
				if !i.live(ctx, r, kind, fmt.Sprintf("%s-%d", kind, n)) {
					return
				}
			}
		})
	}
	lanes.Wait()
}

// leaks returns messages that no policy allows.
func (i *isolated) leaks() (list []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for k, n := range i.arrived {
		receiver, sender, _ := strings.Cut(k, " ")
		switch {
		case strings.HasPrefix(sender, "denied-"), sender == "closed",
			receiver == "strict" && !strings.HasPrefix(sender, "friend-"),
			strings.HasPrefix(receiver, "isolated-"):
			list = append(list, fmt.Sprintf("%d of %s to %s, the first at %s; %s", n, sender, receiver,
				i.first[k].Format("04:05.000000"), strings.Join(append(i.story[sender], i.story[receiver]...), ", ")))
		}
	}
	return list
}

// TestNeverOpen: no packet passes that no policy allows, whatever happens to the node. Pods send
// from before they have an address, with policies that were written just before them. Few addresses
// exist, so that each is that of another pod soon after. Meanwhile the agent, the API server and
// Open vSwitch are killed, and then the node is rebooted.
func TestNeverOpen(t *testing.T) {
	i := startIsolated(t, "10.244.1.0/28")
	start(t, i.node)
	waitWell(t, i.node)
	_, err := i.fast.NetworkingV1().NetworkPolicies("default").Create(t.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "friends"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "strict"}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
				PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "friend"}}}}}},
		}}, metav1.CreateOptions{})
	noError(t, err)
	begin := time.Now()
	var next atomic.Int64
	check := func(after string) {
		t.Helper()
		if list := i.leaks(); len(list) > 0 {
			t.Fatalf("%s, %d leaks: %s", after, len(list), strings.Join(list[:min(len(list), 20)], "; "))
		}
		t.Logf("%s: %d pods after %s", after, next.Load(), time.Since(begin).Round(100*time.Millisecond))
	}
	up, down := context.WithCancel(t.Context())
	i.populate(up)
	half := int64(*isolatedPods) / 2
	i.lives(up, 1, &next, half)
	check("undisturbed")

	for _, event := range []struct {
		what string
		do   func()
	}{
		{"agent killed", func() { noError(t, i.node.Restart(up, agent, syscall.SIGKILL)) }},
		{"agent down for 2 s", func() {
			noError(t, i.node.Kill(up, agent, syscall.SIGKILL))
			time.Sleep(2 * time.Second)
			start(t, i.node)
		}},
		{"API server down for 3 s", func() {
			noError(t, i.server.Stop())
			time.Sleep(3 * time.Second)
			i.startAPI()
		}},
		{"ovs-vswitchd killed", func() { noError(t, i.node.Restart(up, lab.VSwitchd, syscall.SIGKILL)) }},
		{"ovsdb-server killed", func() { noError(t, i.node.Restart(up, lab.OVSDB, syscall.SIGKILL)) }},
	} {
		ctx, stop := context.WithCancel(up)
		var lives sync.WaitGroup
		lives.Go(func() { i.lives(ctx, 2, &next, int64(1<<40)) })
		time.Sleep(500 * time.Millisecond)
		event.do()
		n := next.Load()
		eventually(t, 60*time.Second, event.what+": pods live again", func() (bool, string) {
			return next.Load() > n+8 || t.Failed(), fmt.Sprint(next.Load())
		})
		stop()
		lives.Wait()
		for _, p := range i.node.Pods() {
			if strings.Contains(p.Name(), "-") {
				noError(t, p.Delete(up))
				i.forget(up, p.Name())
			}
		}
		check(event.what)
	}

	down()
	noError(t, i.node.Stop())
	i.node = i.lab.Add(t, i.machine)
	start(t, i.node)
	waitWell(t, i.node)
	up, down = context.WithCancel(t.Context())
	defer down()
	i.populate(up)
	i.lives(up, 3, &next, next.Load()+half)
	check("rebooted")
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.arrived) < 2*int(half)/len(isolationKinds) {
		t.Errorf("only %d kinds of messages have arrived", len(i.arrived))
	}
}

// TestAddressAfterPod: what Open vSwitch decided about a pod's packets does not apply to the next
// pod with the pod's address and its port's number in the datapath, also if Open vSwitch has had no
// time to revalidate.
func TestAddressAfterPod(t *testing.T) {
	t.Parallel()
	favour(t)
	i := startIsolated(t, "10.244.1.0/29") // four pods
	start(t, i.node)
	waitWell(t, i.node)
	ctx := t.Context()
	i.serveOutside()
	for _, name := range []string{"one", "two", "three"} {
		_, _, err := i.sender(name)
		noError(t, err)
	}
	before, _, err := i.sender("before")
	noError(t, err)
	eventually(t, 10*time.Second, "messages arrive",
		func() (bool, string) { return i.got("outside", "before") > 0, "none" })
	revalidator := func(do string) {
		_, err := i.node.Exec(ctx, "ovs-appctl", "revalidator/"+do)
		noError(t, err)
	}
	revalidator("pause")
	noError(t, before.Delete(ctx))
	after, sent, err := i.sender("after", isolateEgress)
	noError(t, err)
	noError(t, lab.Do(after, func() error { // it needs no ARP, as an attacker
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		gateway := after.IPs()[0].As4()
		gateway[3] = 1
		mac := cluster.MACFor(netip.AddrFrom4(gateway))
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: gateway[:], HardwareAddr: mac[:]})
	}))
	from := sent.Load()
	eventually(t, 10*time.Second, "the pod sends", func() (bool, string) { return sent.Load() > from+200, "not yet" })
	revalidator("resume")
	if n := i.got("outside", "after"); n > 0 {
		t.Errorf("%d messages of an isolated pod have arrived", n)
	}
}

// TestPodWithoutFlows: after the removal of an isolated pod's flows, its packets do not pass, even
// if the datapath still caches the decision before conntrack. The agent removes the flows together
// with the port's row, and ovs-vswitchd removes the port later.
func TestPodWithoutFlows(t *testing.T) {
	t.Parallel()
	favour(t)
	i := startIsolated(t, "10.244.1.0/29")
	start(t, i.node)
	waitWell(t, i.node)
	i.serveOutside()
	ctx := t.Context()
	run := func(argv ...string) string {
		t.Helper()
		out, err := i.node.Exec(ctx, argv...)
		noError(t, err)
		return strings.TrimSpace(out)
	}
	_, sent, err := i.sender("denied", isolateEgress)
	noError(t, err)
	sends := func(what string) {
		t.Helper()
		from := sent.Load()
		eventually(t, 10*time.Second, what, func() (bool, string) { return sent.Load() > from+200, "nothing is sent" })
	}
	sends("the pod sends")
	port := onServiceBridge(t, i.node)[0]
	number := run("ovs-vsctl", "get", "Interface", port, "ofport")
	noError(t, i.node.Kill(ctx, agent, syscall.SIGKILL)) // which would restore the flows
	run("ovs-appctl", "revalidator/pause")
	run("ovs-ofctl", "--bundle", "del-flows", claims.ServiceBridge, "in_port="+number)
	n := 0
	for line := range strings.Lines(run("ovs-appctl", "dpctl/dump-flows", "-m")) {
		ufid, rest, _ := strings.Cut(line, ", ")
		if !strings.Contains(rest, "recirc_id(0)") && strings.Contains(rest, "in_port("+port+")") {
			run("ovs-appctl", "dpctl/del-flow", ufid)
			n++
		}
	}
	if n == 0 {
		t.Fatal("the datapath has no flow for a packet's second part")
	}
	sends("the pod still sends")
	run("ovs-appctl", "revalidator/resume")
	if n := i.got("outside", "denied"); n > 0 {
		t.Errorf("%d messages of an isolated pod have arrived", n)
	}
}

// TestPolicyBeforePod: a policy that was written before a pod applies to the pod's first packet,
// also if the agent's watch of policies is late or the API server fails to list them.
func TestPolicyBeforePod(t *testing.T) {
	t.Parallel()
	favour(t)
	i := startIsolated(t, "10.244.1.0/28")
	var late, fails atomic.Bool
	config, err := i.server.RESTConfig()
	noError(t, err)
	transport, err := rest.TransportFor(config)
	noError(t, err)
	server, err := url.Parse(config.Host)
	noError(t, err)
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(server) },
		Transport:     transport,
		FlushInterval: -1,
		ModifyResponse: func(r *http.Response) error {
			if strings.HasSuffix(r.Request.URL.Path, "/networkpolicies") &&
				r.Request.URL.Query().Get("watch") == "true" {
				r.Body = &lateStream{r.Body, r.Request.Context(), &late}
			}
			return nil
		},
	}
	host := i.lab.Host("api")
	var l net.Listener
	noError(t, host.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(host.Addresses()[0].Addr(), 7000).String())
		return err
	}))
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fails.Load() && strings.HasSuffix(r.URL.Path, "/namespaces/default/networkpolicies") {
			http.Error(w, "it fails", http.StatusInternalServerError)
			return
		}
		proxy.ServeHTTP(w, r)
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	noError(t, i.node.WriteFile("/etc/hairpin/kubeconfig", fmt.Sprintf(`{apiVersion: v1, kind: Config,
clusters: [{name: a, cluster: {server: "http://%s"}}], contexts: [{name: a, context: {cluster: a}}], current-context: a}`,
		l.Addr())))
	start(t, i.node)
	waitWell(t, i.node)
	ctx := t.Context()
	i.serveOutside()
	add := func(name string, isolate ...networkingv1.PolicyType) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, _, err := i.sender(name, isolate...)
			done <- err
		}()
		return done
	}
	waits := func(done <-chan error, why string) {
		t.Helper()
		select {
		case err := <-done:
			t.Errorf("%s, and ADD has answered: %v", why, err)
		case <-time.After(2 * time.Second):
		}
	}
	begin := time.Now()
	noError(t, <-add("free"))
	t.Logf("without a policy, ADD takes %d ms", time.Since(begin).Milliseconds())
	eventually(t, 10*time.Second, "messages arrive",
		func() (bool, string) { return i.got("outside", "free") > 0, "none" })

	late.Store(true)
	done := add("late", isolateEgress)
	waits(done, "the policy has not arrived")
	late.Store(false)
	noError(t, <-done)

	fails.Store(true)
	done = add("unlisted", isolateEgress)
	waits(done, "policies cannot be listed")
	fails.Store(false)
	noError(t, <-done)
	time.Sleep(500 * time.Millisecond)
	for _, name := range []string{"late", "unlisted"} {
		if n := i.got("outside", name); n > 0 {
			t.Errorf("%d messages of pod %s have arrived", n, name)
		}
	}
	noError(t, i.fast.NetworkingV1().NetworkPolicies("default").Delete(ctx, "late", metav1.DeleteOptions{}))
	eventually(t, 10*time.Second, "without its policy, the pod may send", func() (bool, string) {
		return i.got("outside", "late") > 0, "none"
	})
}

// lateStream is the body of a response, which waits while late is set.
type lateStream struct {
	body interface {
		Read([]byte) (int, error)
		Close() error
	}
	ctx  context.Context
	late *atomic.Bool
}

func (s *lateStream) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	for s.late.Load() && s.ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	return n, err
}

func (s *lateStream) Close() error { return s.body.Close() }
