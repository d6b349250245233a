package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
	"hairpin/lab/progress"
)

// ErrFailed is the error of Check after it has printed failed cases.
var ErrFailed = errors.New("some traffic did not arrive as it must")

// Checks configures Check for a running demo, which may belong to another process.
type Checks struct {
	Name    string         // of the lab
	Slow    int            // see Options.Slow
	Only    *regexp.Regexp // selects rows and trials; nil means all
	Without *regexp.Regexp // leaves out rows and trials; nil means none
	Out     io.Writer
	Before  func() // called between the rows and the last line; may be nil
	Every   bool   // also runs trials that are known to fail here
}

// Check runs the traffic matrix and the trials, and prints both. The last line is "N passed, N
// failed".
func Check(ctx context.Context, c Checks) error {
	l, err := lab.Open(c.Name)
	if err != nil {
		return err
	}
	from, err := sourceOf(l)
	if err != nil {
		return err
	}
	o, err := from.read(ctx)
	if err != nil {
		return err
	}
	w, err := newWorld(ctx, l, o)
	if err != nil {
		return err
	}
	w.objects, w.slow, w.every, w.sctp = from, c.Slow, c.Every, probe.HasSCTP()
	if err := w.patientConntrack(); err != nil {
		return err
	}
	fits := func(name string) bool {
		return (c.Only == nil || c.Only.MatchString(name)) && (c.Without == nil || !c.Without.MatchString(name))
	}
	rows := w.rows(Cases(), fits)
	trials := slices.DeleteFunc(Trials(), func(x Trial) bool { return !fits(x.Name) })
	attacks := slices.DeleteFunc(Attacks(), func(x Attack) bool { return !fits(x.name()) })
	all := len(trials) + len(attacks)
	for _, r := range rows {
		all += len(r)
	}
	board := progress.New(c.Out)
	t := &table{out: board, all: all, step: board.Begin("tries")}
	if err = w.run(ctx, rows, t.tell); err == nil {
		err = w.runTrials(ctx, trials, t)
	}
	if err == nil {
		err = w.runAttacks(ctx, attacks, t)
	}
	t.step.End()
	board.Close()
	if err != nil {
		return err
	}
	if c.Before != nil {
		c.Before()
	}
	t.end()
	if t.failed > 0 {
		return ErrFailed
	}
	return nil
}

// newWorld collects the facts of the lab and of its objects.
func newWorld(ctx context.Context, l *lab.Lab, o *objects) (*world, error) {
	first := l.Nodes()[0]
	config, err := os.ReadFile(first.Path(agentConfig))
	if err != nil {
		return nil, fmt.Errorf("read the agent's configuration: %w", err)
	}
	version, err := switchVersion(ctx, first)
	if err != nil {
		return nil, err
	}
	has := func(key, value string) bool { return strings.Contains(string(config), key+" = "+value) }
	shared := has("mode", cluster.ModeShared) || !has("mode", "")
	openflow := !has("service-engine", cluster.EngineOVN)
	w := &world{lab: l, userspace: first.Datapath() == "netdev", shared: shared,
		detached:  has("mode", cluster.ModeDetached),
		nodeLocal: has("node-local", cluster.LocalDGP) && !openflow,
		redirect:  has("nodeport-path", cluster.PathRedirect), openflow: openflow, openvswitch: version,
		endpoints: map[string]endpoint{}, nodes: map[string]nodeFacts{}, services: map[string]serviceFacts{}}
	for _, n := range l.Nodes() {
		w.endpoints[hostPlace(n.Name())] = endpoint{n.Host, plain(n.Addresses()), hostPort}
		for _, p := range n.Pods() {
			w.endpoints[p.Name()] = endpoint{p, p.IPs(), podPort}
		}
	}
	client := l.Host(clientName)
	if client == nil {
		return nil, fmt.Errorf("lab %s has no outside client: it is no demo", l.Name())
	}
	w.endpoints[clientName] = endpoint{client, plain(client.Addresses()), clientPort}
	for i := range o.nodes {
		f, err := factsOfNode(&o.nodes[i])
		if err != nil {
			return nil, err
		}
		w.nodes[o.nodes[i].Name] = f
	}
	for i := range o.services {
		f, err := factsOfService(&o.services[i])
		if err != nil {
			return nil, err
		}
		w.services[o.services[i].Name] = f
	}
	return w, nil
}

// patientConntrack raises conntrack's timeouts on a slow machine. By default it forgets an SCTP
// association whose next packet takes 3 s, and a UDP client that is silent for 30 s. It then gives
// the client's port to another one.
func (w *world) patientConntrack() error {
	if w.slow <= 1 {
		return nil
	}
	for _, e := range w.endpoints {
		err := lab.Do(e.place, func() error {
			for state, seconds := range map[string]int{"sctp_timeout_cookie_wait": 3, "sctp_timeout_cookie_echoed": 3,
				"udp_timeout": 30} {
				err := os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_"+state, fmt.Appendln(nil, seconds*w.slow),
					0o644)
				if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without SCTP
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", e.place.Name(), err)
		}
	}
	return nil
}

func plain(list []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, p := range list {
		out = append(out, p.Addr())
	}
	return out
}
