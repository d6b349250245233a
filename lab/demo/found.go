package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/walk"
)

// found returns the World of what is on the nodes.
func (d *Demo) found(ctx context.Context) (walk.World, error) {
	w := walk.World{States: map[string]datapath.State{}}
	for _, n := range d.lab.Nodes() {
		own := &cluster.Snapshot{}
		text, err := n.Exec(ctx, "hairpin", "ask", "--config-file="+agentConfig, "/snapshot")
		if err == nil {
			err = json.Unmarshal([]byte(text), own)
		}
		if err == nil {
			text, err = n.Exec(ctx, "hairpin", "ask", "--config-file="+agentConfig, "/found?output=json")
		}
		if err == nil {
			var found datapath.State
			err = datapath.Decode([]byte(text), &found)
			w.States[n.Name()] = found
		}
		if err != nil {
			return w, fmt.Errorf("%s: %w", n.Name(), err)
		}
		if w.Snapshot == nil {
			w.Snapshot = own
			continue
		}
		// A node's own agent has the best data about it.
		for i := range w.Snapshot.Nodes {
			if w.Snapshot.Nodes[i].Name == n.Name() {
				w.Snapshot.Nodes[i] = own.Node(n.Name())
			}
		}
		w.Snapshot.Pods = slices.DeleteFunc(w.Snapshot.Pods, func(p *cluster.Pod) bool { return p.Node == n.Name() })
		for _, p := range own.Pods {
			if p.Node == n.Name() {
				w.Snapshot.Pods = append(w.Snapshot.Pods, p)
			}
		}
	}
	return w, nil
}

// point returns the location of an endpoint of the matrix.
func (w *world) point(s *cluster.Snapshot, name string) walk.Point {
	if node, ok := strings.CutPrefix(name, "host-"); ok {
		return walk.Point{Node: "node-" + node}
	}
	for _, p := range s.Pods {
		if p.Owner.Name == name {
			return walk.Point{Node: p.Node, Pod: p.Owner}
		}
	}
	return walk.Point{}
}
