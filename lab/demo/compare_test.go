package demo

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
	"hairpin/walk"
	"hairpin/walk/explain"
	"hairpin/walk/packet"
)

var (
	compareMode = flag.String("compare", "",
		"compare every case of the matrix in a lab of this gateway mode: walk, ovn-trace, ofproto/trace, "+
			"conntrack and packets")
	comparePath  = flag.String("nodeport-path", "", "with -compare: [gateway] nodeport-path of the nodes")
	compareLocal = flag.String("node-local", "", "with -compare: [gateway] node-local of the nodes")
	compareBy    = flag.String("engine", "", "with -compare: [default] service-engine of the nodes")
	compareIn    = flag.String("compare-in", "", "as -compare, in the demo of this name that runs")
	compareOnly  = flag.String("only", "",
		"with -compare and -compare-in: only cases whose words hold this, such as \"pod-a2 hostself NodePort\"")
)

// TestCompare walks every case of the matrix, over every protocol and family, through the nodes'
// state. The walk must agree with ovn-trace, ofproto/trace, the kernel's conntrack and the packet
// itself. `make compare MODE=…` runs it.
func TestCompare(t *testing.T) {
	var d *Demo
	switch {
	case *compareIn != "":
		l, err := lab.Open(*compareIn)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := sourceOf(l)
		if err != nil {
			t.Fatal(err)
		}
		d = &Demo{lab: l, source: objects}
	case *compareMode != "":
		d = startDemoIn(t, "", Options{Mode: *compareMode, NodePortPath: *comparePath, NodeLocal: *compareLocal,
			Engine: *compareBy})
	default:
		t.Skip("-compare MODE asks for it; TestMatrixWithManifests compares a sample")
	}
	if *compareOnly == "passes" {
		countsPasses(t, d)
		return
	}
	if *compareOnly == "send" {
		proves(t, d)
		return
	}
	c := newComparison(t, d)
	for _, x := range Cases() {
		if strings.Contains(strings.Join([]string{x.From, x.To, x.Path}, " "), *compareOnly) {
			c.all(x)
		}
	}
	c.end()
}

// compareSample compares a few cases of each kind. It is part of every test run.
func compareSample(t *testing.T, d *Demo) {
	c := newComparison(t, d)
	for i, x := range Cases() {
		if i%12 == 2 || x.To == "hostself" && x.Path == "ClusterIP" {
			c.all(x)
		}
	}
	c.end()
}

// comparison is one run over cases.
type comparison struct {
	t      *testing.T
	d      *Demo
	w      *world
	s      *cluster.Snapshot
	walker *walk.Walker
	ports  map[[3]string]string // node, bridge and number of an OpenFlow port: its name
	links  map[[2]string]string // node and logical port: its link
	// By node: stages by cookie, and names of switches and routers by OpenFlow metadata.
	logicalFlows, datapaths map[string]map[string]string

	mu       sync.Mutex
	asked    map[string][]question // by node, for its tools
	counts   map[string]int        // number of comparisons
	disagree int
}

// question is a command on a node, and a check of its output.
type question struct {
	kind, about, command string
	check                func(out string) error
}

func newComparison(t *testing.T, d *Demo) *comparison {
	t.Helper()
	o, err := d.source.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := &comparison{t: t, d: d, ports: map[[3]string]string{}, links: map[[2]string]string{},
		logicalFlows: map[string]map[string]string{}, datapaths: map[string]map[string]string{},
		asked: map[string][]question{}, counts: map[string]int{}}
	if c.w, err = newWorld(t.Context(), d.lab, o); err != nil {
		t.Fatal(err)
	}
	c.readNodes()
	c.readPorts()
	c.readLogicalFlows()
	return c
}

// readNodes creates the World of what is on the nodes.
func (c *comparison) readNodes() {
	c.t.Helper()
	w, err := c.d.found(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	c.s, c.walker = w.Snapshot, walk.New(w)
}

// all compares a case over every protocol and family.
func (c *comparison) all(x Case) {
	if x.By == closed { // the walk does not know the ports of endpoints
		return
	}
	for _, protocol := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
		for _, f := range families() {
			err := c.one(x, protocol, f)
			if err != nil { // a port already in use by conntrack changes the packet
				err = c.one(x, protocol, f)
			}
			c.judge("reality", c.name(x, protocol, f), err)
		}
	}
}

func (c *comparison) name(x Case, protocol cluster.Protocol, f family) string {
	return fmt.Sprintf("%s to %s by %s, %s%s", x.From, x.To, x.Path, protocol, f.name)
}

func (c *comparison) judge(kind, about string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[kind]++
	if err != nil {
		c.disagree++
		c.t.Errorf("%s: %s and the walk disagree: %v", about, kind, err)
	}
}

// one sends a packet, walks it, compares both, and adds questions for the nodes' tools.
func (c *comparison) one(x Case, protocol cluster.Protocol, f family) error {
	to, err := c.w.target(x, f)
	if err != nil {
		return err
	}
	patience := 3 * time.Second
	if x.By == dropped {
		patience = time.Second
	}
	got := lab.Get(c.t.Context(), c.w.endpoints[x.From].place,
		probe.Request{Protocol: protocol.String(), To: to, Timeout: patience})
	from, p := c.w.point(c.s, x.From), packet.Packet{Protocol: protocol, Src: got.Client.Addr(),
		SrcPort: got.Client.Port(), Dst: to.Addr(), DstPort: to.Port()}
	if from == (walk.Point{}) {
		p.Src = c.w.endpoints[x.From].address(f)
		if !strings.HasPrefix(x.Path, "NodePort") {
			p.EthDst = walk.ExternalMAC(c.s.Node("node-a"))
		}
	}
	tr, err := c.walker.Walk(from, p, c.answered(got)...)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, tr)
	}
	if err := c.reality(got, tr, protocol); err != nil {
		return fmt.Errorf("%w\n%s", err, tr)
	}
	about := c.name(x, protocol, f)
	if got.Error == "" {
		c.kernels(about, tr)
	}
	c.bridges(about, tr)
	c.logical(about, tr)
	return nil
}

// answered returns the addresses that a load balancer may have for the server that replied.
func (c *comparison) answered(a probe.Answer) []netip.AddrPort {
	if a.Error != "" {
		return nil
	}
	list := []netip.AddrPort{a.Local}
	if e, ok := c.w.endpoints[a.Name]; ok {
		for _, f := range families() {
			list = append(list, netip.AddrPortFrom(e.address(f), e.port),
				netip.AddrPortFrom(f.masquerade.Addr().Next().Next(), e.port))
		}
	}
	return list
}

// reality compares the end of the walk with what happened.
func (c *comparison) reality(a probe.Answer, tr walk.Trace, protocol cluster.Protocol) error {
	v := tr.Verdict
	switch {
	case a.Error == "" && !(v.Delivered && v.Answered):
		return fmt.Errorf("%s answered", a.Name)
	case a.Error != "" && v.Delivered && v.Answered:
		return errors.New("no answer: " + a.Error)
	case strings.Contains(a.Error, "refused") && !v.Rejected:
		return errors.New("it was refused")
	case a.Error != "" && v.Rejected && protocol == cluster.TCP && !strings.Contains(a.Error, "refused"):
		return errors.New("it was not refused: " + a.Error)
	case a.Error != "":
		return nil
	case c.w.point(c.s, a.Name) != v.At:
		return fmt.Errorf("%s answered, not %s", a.Name, v.At)
	case a.Saw.Addr() != v.Seen.Src:
		return fmt.Errorf("%s saw %s, not %s", a.Name, a.Saw, v.Seen.Src)
	// A port that is chosen from a range may be any of it.
	case v.Seen.SrcPort == tr.Sent.SrcPort && a.Saw.Port() != v.Seen.SrcPort:
		return fmt.Errorf("%s saw %s, not port %d", a.Name, a.Saw, v.Seen.SrcPort)
	}
	return nil
}

// kernels adds the connections that the hosts' kernels must have according to the walk.
func (c *comparison) kernels(about string, tr walk.Trace) {
	for _, s := range tr.Forward {
		if s.Entry == "" || explain.PlaceOf(s.Stage).Kind != explain.Host {
			continue
		}
		n := c.d.lab.Node(s.Node)
		words := strings.Fields(s.Entry)
		family := "ipv4"
		if s.After.Dst.Is6() {
			family = "ipv6"
		}
		out, err := n.Exec(c.t.Context(), "conntrack", "-L", "-f", family, "-p", words[0])
		if err == nil && !holdsEntry(out, words[1:], ranged(tr)) {
			err = fmt.Errorf("%s has no entry %s", s.Node, s.Entry)
		}
		c.judge("conntrack", about, err)
	}
}

// ranged reports whether the packet's port was chosen from a range, so that the entry may have
// another one.
func ranged(tr walk.Trace) bool {
	return slices.ContainsFunc(tr.Forward, func(s packet.Step) bool { return s.After.SrcPort != tr.Sent.SrcPort })
}

// holdsEntry reports whether conntrack -L lists an entry, its words in order. With anyPort, it
// ignores client ports.
func holdsEntry(list string, words []string, anyPort bool) bool {
	fits := func(a, b string) bool {
		return a == b || anyPort && portWord(a) && portWord(b)
	}
	for line := range strings.Lines(list) {
		i := 0
		for _, w := range strings.Fields(line) {
			if strings.HasPrefix(w, "[") {
				continue
			}
			if i < len(words) && fits(words[i], w) {
				i++
			}
		}
		if i == len(words) {
			return true
		}
	}
	return false
}

func portWord(w string) bool { return strings.HasPrefix(w, "sport=") || strings.HasPrefix(w, "dport=") }

// end runs all added questions with the nodes' tools, and logs what was compared.
func (c *comparison) end() {
	c.t.Helper()
	var all []func() error
	for node, list := range c.asked {
		all = append(all, func() error { return c.ask(c.d.lab.Node(node), list) })
	}
	if err := lab.Together(all...); err != nil {
		c.t.Fatal(err)
	}
	c.t.Logf("compared with the walk: %v; disagreements: %d", c.counts, c.disagree)
}

const endOfPart = "=== end of a part ==="

// ask runs many commands at once, because a process on the node costs more than a trace.
func (c *comparison) ask(n *lab.Node, list []question) error {
	script := "set +e\n"
	for _, q := range list {
		script += q.command + " 2>&1\necho; echo '" + endOfPart + "'\n"
	}
	out, err := n.ExecInput(c.t.Context(), script, "bash")
	if err != nil {
		return err
	}
	parts := strings.Split(out, endOfPart+"\n")
	if len(parts) != len(list)+1 {
		return fmt.Errorf("%s: %d answers to %d questions", n.Name(), len(parts)-1, len(list))
	}
	for i, q := range list {
		err := q.check(parts[i])
		if err != nil {
			err = fmt.Errorf("%s: %w\n%s", n.Name(), err, q.command)
			if testing.Verbose() {
				err = fmt.Errorf("%w\n%s", err, parts[i])
			}
		}
		c.judge(q.kind, q.about, err)
	}
	return nil
}
