package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/watch"
)

// TestProblemsOfSomeNodes checks that problems of nodes with one engine are found, whichever node
// is first. The planned node of a kind stays the same.
func TestProblemsOfSomeNodes(t *testing.T) {
	var addresses []string
	for i := range 700 {
		addresses = append(addresses, fmt.Sprintf("{addresses: [10.20.%d.%d]}", i/200, i%200+1))
	}
	s, err := watch.ReadFiles("../examples/demo", cluster.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	with := watch.ParseManifests([]byte(`
{apiVersion: v1, kind: Service, metadata: {name: large}, spec: {clusterIP: 10.96.9.9, clusterIPs: [10.96.9.9], ports: [{port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: large-1, labels: {kubernetes.io/service-name: large}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [`+strings.Join(addresses, ", ")+"]\n"), cluster.DefaultConfig())
	s.Frontends = with.Frontends
	for i, n := range s.Nodes {
		with := *n
		with.Gateway.OpenFlow = i == len(s.Nodes)-1
		s.Nodes[i] = &with
	}
	p := newPlans()
	update := func(s *cluster.Snapshot) (planned int) {
		p.planned = time.Time{}
		p.update(s, func(time.Duration) { planned++ })
		return planned
	}
	if n := update(s); n != 2 {
		t.Errorf("%d nodes are planned", n)
	}
	found := 0
	for _, x := range p.problems {
		if x.Owner.Name == "large" {
			found++
			t.Log(x)
		}
		if x.Owner.Kind == "Node" {
			t.Errorf("the problem is a node's: %s", x)
		}
	}
	if found != 1 {
		t.Errorf("%d problems of the Service: %v", found, p.problems)
	}
	before := p.kinds[kindOf(&s.Config, s.Nodes[0])].node
	newer := *s
	first := *s.Nodes[0]
	first.Name, first.ID = "aaa", 99
	newer.Nodes = append([]*cluster.Node{&first}, s.Nodes...)
	update(&newer)
	if after := p.kinds[kindOf(&s.Config, s.Nodes[0])].node; after != before {
		t.Errorf("%s is planned in place of %s", after, before)
	}
	newer.Nodes = s.Nodes[:1]
	if n := update(&newer); n != 1 || len(p.kinds) != 1 {
		t.Errorf("%d nodes are planned, there are %d kinds", n, len(p.kinds))
	}
}
