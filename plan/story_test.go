package plan_test

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/ovs"
	"hairpin/plan"
	"hairpin/walk"
	"hairpin/walk/packet"
	"hairpin/watch"
)

var update = flag.Bool("update", false, "rewrite the stories' wanted states and walks")

// A story is a txtar file that begins with a description. Its sections:
//
//	objects.yaml                    Kubernetes manifests
//	problems                        their Problems, for any node
//	NODE.state                      the desired state of the node
//	NODE.state KIND/NAMESPACE/NAME  the part of it for this object
//	NODE.services                   its pods and their Services as flows and groups
//	costs FROM PROTOCOL ADDRESS     the cost of the first packets of a walk
//	walk FROM PROTOCOL ADDRESS      the path of a packet and its reply. FROM is host/NODE, pod/NAMESPACE/NAME or
//	                                outside/ADDRESS, or outside/ADDRESS@NODE if the network routes to that node;
//	                                pod/NAMESPACE/NAME@ADDRESS sends from that address;
//	                                "prefer ADDRESS …" at the end chooses endpoints
//	document FILE walk …            the rules and conntrack entries that a document names for that walk (walks_test.go)
//
// All but objects.yaml and document are computed; `make golden` rewrites them, and
// docs/design/walks.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	pages := newLibrary()
	all := true
	for _, file := range files {
		all = t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) { tell(t, file, pages) }) &&
			all
	}
	if all && pages.told == len(files) { // not with -run of some stories
		pages.check(t)
	}
}

func tell(t *testing.T, file string, pages *library) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	archive := txtar.Parse(text)
	s := read(t, archive)
	for i, f := range archive.Files {
		if f.Name == "objects.yaml" || strings.HasPrefix(f.Name, "document ") {
			continue
		}
		got, err := s.section(f.Name)
		if err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
		if bytes.Equal(f.Data, []byte(got)) {
			continue
		}
		archive.Files[i].Data = []byte(got)
		if !*update {
			t.Errorf("%s is now (make golden rewrites it):\n%s", f.Name, got)
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pages.add(t, strings.TrimSuffix(filepath.Base(file), ".txtar"), archive, s)
}

type story struct {
	world    walk.World
	walker   *walk.Walker
	problems []cluster.Problem
}

func read(t *testing.T, archive *txtar.Archive) *story {
	t.Helper()
	i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == "objects.yaml" })
	if i < 0 {
		t.Fatal("no objects.yaml")
	}
	snapshot := watch.ParseManifests(archive.Files[i].Data, cluster.DefaultConfig())
	s := &story{world: walk.World{Snapshot: snapshot, States: map[string]datapath.State{}}, problems: snapshot.Problems}
	for _, n := range snapshot.Nodes {
		state, problems := plan.Node(snapshot, n.Name)
		s.problems = append(s.problems, problems...)
		if state.NB != nil {
			s.world.States[n.Name] = state
			check(t, state)
		}
	}
	s.walker = walk.New(s.world)
	return s
}

// check fails unless the target systems accept a State, and its JSON is complete.
func check(t *testing.T, state datapath.State) {
	t.Helper()
	for _, f := range state.Bridge.Flows.All() {
		if err := f.Check(); err != nil {
			t.Error(err)
		}
	}
	var back datapath.State
	text, err := datapath.Encode(state)
	if err == nil {
		err = datapath.Decode(text, &back)
	}
	if err != nil || !reflect.DeepEqual(back, state) {
		t.Errorf("the state read back from JSON is another one: %v", err)
	}
}

func (s *story) section(name string) (string, error) {
	words := strings.Fields(name)
	if node, ok := strings.CutSuffix(words[0], ".state"); ok {
		state, planned := s.world.States[node]
		if !planned {
			return "", fmt.Errorf("node %q has no state", node)
		}
		if len(words) == 1 {
			return datapath.Print(state), nil
		}
		return linesOf(datapath.Print(state), words[1]), nil
	}
	if node, ok := strings.CutSuffix(words[0], ".services"); ok {
		return ovs.Print(onServiceBridge(s.world.States[node].Bridge)), nil
	}
	switch words[0] {
	case "problems":
		var lines []string
		for _, p := range s.problems {
			lines = append(lines, p.Error()+"\n")
		}
		slices.Sort(lines)
		return strings.Join(slices.Compact(lines), ""), nil
	case "walk":
		trace, err := s.trace(words[1:])
		return trace.String(), err
	case "costs":
		trace, err := s.trace(words[1:])
		return fmt.Sprintf("first: %s\nlater: %s\nreply: %s\n", trace.Costs.First, trace.Costs.Later,
			trace.Costs.Reply), err
	}
	return "", fmt.Errorf("unknown section")
}

// linesOf returns the lines of an object.
func linesOf(text, owner string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasSuffix(line, "# "+owner+"\n") || strings.Contains(line, `"`+owner+`"`) {
			b.WriteString(strings.TrimLeft(line, "\t"))
		}
	}
	return b.String()
}

// onServiceBridge returns the state of claims.ServiceBridge.
func onServiceBridge(s ovs.State) ovs.State {
	on := ovs.State{Bridges: s.Bridges, Groups: s.Groups, Ports: maps.Clone(s.Ports), Flows: s.Flows.Clone()}
	maps.DeleteFunc(on.Ports, func(_ string, p ovs.Port) bool { return p.Type != "patch" })
	for id, f := range s.Flows.All() {
		if f.Bridge != claims.ServiceBridge {
			on.Flows.Delete(id)
		}
	}
	return on
}

func (s *story) trace(words []string) (walk.Trace, error) {
	if len(words) < 3 {
		return walk.Trace{}, fmt.Errorf("walk FROM PROTOCOL ADDRESS")
	}
	from, packet, err := s.from(words[0])
	if err != nil {
		return walk.Trace{}, err
	}
	for _, p := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
		if p.String() == words[1] {
			packet.Protocol = p
		}
	}
	to, err := netip.ParseAddrPort(words[2])
	if err != nil {
		return walk.Trace{}, err
	}
	packet.Dst, packet.DstPort = to.Addr(), to.Port()
	var prefer []netip.AddrPort
	if len(words) > 3 {
		for _, w := range words[4:] {
			prefer = append(prefer, netip.MustParseAddrPort(w))
		}
	}
	trace, err := s.walker.WalkWithLater(from, packet, prefer...)
	if err != nil {
		return trace, fmt.Errorf("%w\n%s", err, trace)
	}
	return trace, nil
}

func (s *story) from(word string) (walk.Point, packet.Packet, error) {
	kind, rest, _ := strings.Cut(word, "/")
	switch kind {
	case "outside":
		client, router, routed := strings.Cut(rest, "@")
		a, err := netip.ParseAddr(client)
		p := packet.Packet{Src: a}
		if n := s.world.Snapshot.Node(router); n != nil {
			p.EthDst = walk.ExternalMAC(n)
		} else if routed {
			err = fmt.Errorf("there is no node %q", router)
		}
		return walk.Point{}, p, err
	case "host":
		return walk.Point{Node: rest}, packet.Packet{}, nil
	case "pod":
		name, source, sends := strings.Cut(rest, "@")
		var packet packet.Packet
		if sends {
			var err error
			if packet.Src, err = netip.ParseAddr(source); err != nil {
				return walk.Point{}, packet, err
			}
		}
		owner := cluster.ParseOwner("Pod/" + name)
		for _, p := range s.world.Snapshot.Pods {
			if p.Owner == owner {
				return walk.Point{Node: p.Node, Pod: owner}, packet, nil
			}
		}
	}
	return walk.Point{}, packet.Packet{}, fmt.Errorf("%q is nowhere", word)
}
