package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"hairpin/image"
	"hairpin/lab"
)

// DefaultName is the name of the lab.
const DefaultName = "bench"

// Options configure a measurement.
type Options struct {
	Name    string // of the lab; empty = DefaultName
	Hairpin string // the binary under test
	// KubeRouter is the binary beside which changes of NetworkPolicies are measured; empty = none.
	KubeRouter string
	Only       []string // parts to measure; empty = all of usual
	Side       string   // "hairpin" or "kube-proxy"; empty = both
	OVS        string   // Open vSwitch and OVN of the node image; see image.Node
	TSO        bool     // of Open vSwitch's userspace datapath, and of all NICs
	Mode       string   // gateway mode of the nodes whose passes are counted; empty = shared
	// Engine serves Services on Hairpin's node; empty = the default. For traffic it may name two,
	// as "ovn,openflow", each on its own node.
	Engine   string
	Sizes    []int  // numbers of Services, ascending
	Policies []int  // numbers of NetworkPolicies, ascending
	Rounds   int    // endpoints or policies changed per size and side
	Turns    int    // rounds of traffic; 0 = 5
	Ways     string // of traffic: paths whose name matches this regular expression; empty = all
	Slow     int    // factor by which this machine is slower than usual
	Out      io.Writer
}

// Parts returns what can be measured.
func Parts() []string {
	return append(slices.Clone(usual), partPolicies, partAllowed, partRedirect, partDGP, partPasses)
}

// usual is measured if no part is named.
var usual = []string{partChange, partCreate, partTraffic}

const (
	partChange  = "change"  // one endpoint changed, cold start, memory and CPU, by number of Services
	partCreate  = "create"  // 1 000 Services created at once
	partTraffic = "traffic" // connections per second and throughput

	// These are measured alone.
	partPolicies = "policies" // NetworkPolicies, of Hairpin only
	partRedirect = "redirect" // of NodePorts, by nft and by eBPF programs
	partDGP      = "dgp"      // of a node's host, by policies and by a distributed gateway port
	partAllowed  = "allowed"  // traffic that NetworkPolicies allow, beside traffic without policies
	partPasses   = "passes"   // conntrack passes and datapath lookups of each packet
)

// world is the lab, its API server and the objects in it.
type world struct {
	opt    Options
	match  *regexp.Regexp // selects paths
	begin  time.Time
	lab    *lab.Lab
	kube   string // binary of kube-proxy
	server *lab.Host

	api    lab.APIServerConfig
	runs   *lab.APIServer // nil if it does not run
	client kubernetes.Interface
	made   int            // number of Services
	slices map[int]*slice // as last written
}

// Ports: outside belongs to the external server, inside to the pods' server, sink to the pods'
// sink.
const (
	outside = 8090
	inside  = 8080
	sink    = 8081

	nodePort = 30080 // of the first Service
)

// Run measures and prints tables. It removes the lab before it returns.
func Run(ctx context.Context, opt Options) error {
	for _, p := range opt.Only {
		if !slices.Contains(Parts(), p) {
			return fmt.Errorf("%q cannot be measured; there are %v", p, Parts())
		}
	}
	if strings.Contains(opt.Engine, ",") && !slices.Equal(opt.Only, []string{partTraffic}) {
		return fmt.Errorf("two engines (%s) are only compared by what they carry: measure %s alone", opt.Engine,
			partTraffic)
	}
	opt.Name, opt.Turns = cmp.Or(opt.Name, DefaultName), cmp.Or(opt.Turns, turnRounds)
	match, err := regexp.Compile(opt.Ways)
	if err != nil {
		return fmt.Errorf("the ways to measure: %w", err)
	}
	opt.Slow = max(1, opt.Slow)
	if len(opt.Only) == 0 {
		opt.Only = usual
	}
	if len(opt.Only) == 1 { // without kube-proxy and an API server
		switch opt.Only[0] {
		case partRedirect:
			return inTurn(ctx, opt, pathSetting())
		case partDGP:
			return inTurn(ctx, opt, localSetting())
		case partAllowed:
			return inTurn(ctx, opt, policySetting())
		case partPasses:
			return passes(ctx, opt)
		}
	}
	w := &world{opt: opt, match: match, begin: time.Now()}
	defer w.close()
	if err := w.start(ctx); err != nil {
		return err
	}
	for _, m := range []struct {
		part    string
		measure func(context.Context) error
	}{{partTraffic, w.traffic}, {partCreate, w.create}, {partChange, w.change}, {partPolicies, w.policies}} {
		if !slices.Contains(opt.Only, m.part) {
			continue
		}
		if err := m.measure(ctx); err != nil {
			return fmt.Errorf("measure %s: %w", m.part, err)
		}
	}
	return nil
}

// patience returns the time limit for what takes the usual time on an idle, usual machine.
func (w *world) patience(usual time.Duration) time.Duration {
	return 10 * usual * time.Duration(w.opt.Slow)
}

// say prints a line of progress.
func (w *world) say(format string, args ...any) {
	fmt.Fprintf(w.opt.Out, "%6.1f s  %s\n", time.Since(w.begin).Seconds(), fmt.Sprintf(format, args...))
}

// Build builds and keeps the API server and kube-proxy, without starting them. A machine that is
// too slow to build them, or cannot write, needs them built before.
func Build(ctx context.Context, progress func(string)) (server, proxy string, err error) {
	if server, err = lab.BuildKube(ctx, image.DefaultDir, progress); err != nil {
		return "", "", err
	}
	proxy, err = lab.BuildKubeProxy(ctx, image.DefaultDir, progress)
	return server, proxy, err
}

// start starts what both sides need.
func (w *world) start(ctx context.Context) error {
	progress := func(line string) { w.say("%s", line) }
	binary, proxy, err := Build(ctx, progress)
	if err != nil {
		return err
	}
	w.kube = proxy
	list, err := image.Node(w.opt.OVS)
	if err != nil {
		return err
	}
	if w.opt.KubeRouter != "" { // it runs these
		list.Name, list.Packages = "kube-router", append(slices.Clone(list.Packages), "iptables", "ipset")
	}
	root, err := list.Build(ctx, image.DefaultDir, progress)
	if err != nil {
		return err
	}
	if w.lab, err = lab.New(ctx, lab.Config{Name: w.opt.Name, Image: root, DieWithCaller: true, Offloads: true,
		TSO: w.opt.TSO, Progress: progress}); err != nil {
		return err
	}
	host := func(name, address string) (*lab.Host, error) {
		return w.lab.StartHost(ctx, lab.HostConfig{Name: name,
			Addresses: []netip.Prefix{netip.MustParsePrefix(address + "/16")}})
	}
	if w.server, err = host("server", serverAddress); err != nil {
		return err
	}
	if _, err := lab.Serve(ctx, w.server, "server", outside); err != nil {
		return err
	}
	api, err := host("api", "172.18.0.10")
	if err != nil {
		return err
	}
	w.api = lab.APIServerConfig{Binary: binary, Dir: w.lab.APIServerDir(), Address: api.Addresses()[0].Addr(),
		Netns: api.Netns(), DieWithCaller: true}
	return nil
}

func (w *world) close() {
	if w.lab == nil {
		return
	}
	if err := w.stopAPI(); err != nil {
		w.say("%v", err)
	}
	if err := w.lab.Close(); err != nil {
		w.say("%v", err)
	}
}

// each measures one side after the other, each on a fresh node.
func (w *world) each(ctx context.Context, measure func(context.Context, *side) error) error {
	for _, one := range []struct {
		name  string
		start func(context.Context) (*side, error)
	}{{"hairpin", w.ours}, {"kube-proxy", w.theirs}} {
		if w.opt.Side != "" && w.opt.Side != one.name {
			continue
		}
		if err := w.on(ctx, one.start, measure); err != nil {
			return err
		}
	}
	return nil
}

// on measures one side, on a fresh node.
func (w *world) on(ctx context.Context, start func(context.Context) (*side, error),
	measure func(context.Context, *side) error) error {
	s, err := start(ctx)
	if err == nil {
		err = measure(ctx, s)
	}
	if s != nil && s.node != nil {
		if err != nil {
			err = fmt.Errorf("%s: %w\n%s", s.name, err, s.logEnd())
		}
		if e := s.node.Stop(); err == nil {
			err = e
		}
	}
	return err
}

// until sends requests from the node's host, one per millisecond, until a server of that name
// replies. It returns the time since begin.
func (w *world) until(ctx context.Context, s *side, to netip.AddrPort, name string, begin time.Time,
	usual time.Duration) (time.Duration, error) {
	// A client without a reply retries sooner than the kernel, which waits a second for a reply to
	// its first packet.
	at, err := lab.Until(ctx, s.node, to, name, 20*time.Millisecond*time.Duration(w.opt.Slow), w.patience(usual))
	return at.Sub(begin), err
}

// hairpinBinary returns the absolute path of the binary under test.
func (w *world) hairpinBinary() (string, error) { return filepath.Abs(w.opt.Hairpin) }
