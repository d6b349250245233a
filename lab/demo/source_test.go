package demo

import (
	"os"
	"testing"
)

// A folder contains what is created there, with its age, and a label changes nothing else in it.
func TestFolder(t *testing.T) {
	f := &folder{t.TempDir()}
	if err := os.CopyFS(f.dir, os.DirFS(demoObjects)); err != nil {
		t.Fatal(err)
	}
	read := func() *objects {
		t.Helper()
		o, err := f.read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	before := read()
	for on, value := range map[bool]any{true: "", false: nil} {
		if err := f.set(t.Context(), "Node", EgressStays, labelsField, egressLabel, value); err != nil {
			t.Fatal(err)
		}
		after := read()
		for i, n := range after.nodes {
			_, has := n.Labels[egressLabel]
			if want := on && n.Name == EgressStays; has != want {
				t.Errorf("label %v: %s has it: %v", on, n.Name, has)
			}
			delete(n.Labels, egressLabel)
			if n.String() != before.nodes[i].String() {
				t.Errorf("label %v: %s is now\n%v\nit was\n%v", on, n.Name, &n, &before.nodes[i])
			}
		}
	}
	if err := f.set(t.Context(), "Node", "nobody", labelsField, egressLabel, ""); err == nil {
		t.Error("a Node that no manifest has was labelled")
	}
	o, err := parseObject(dyingNode)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	after := read()
	if n := after.nodes[len(after.nodes)-1]; n.Name != EgressDies || n.CreationTimestamp.IsZero() ||
		n.Annotations[nodeIDAnnotation] != "4" {
		t.Errorf("created was %v", &n)
	}
	if err := f.remove(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if n := len(read().nodes); n != len(before.nodes) {
		t.Errorf("after remove there are %d Nodes", n)
	}
}
