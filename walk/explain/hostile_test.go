package explain_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/plan"
	"hairpin/walk"
	"hairpin/walk/explain"
	"hairpin/walk/explain/question"
	"hairpin/watch"
)

// damages returns replacements for a value, of the same type, as JSON decoding would otherwise
// fail.
func damages(v any) []any {
	switch v.(type) {
	case string:
		return []any{deleted{}, "", " "}
	case json.Number:
		return []any{deleted{}, 0}
	case []any:
		return []any{deleted{}, []any{}}
	case map[string]any:
		return []any{deleted{}, map[string]any{}}
	}
	return []any{deleted{}}
}

// deleted is a value that removes the member or the item.
type deleted struct{}

// damage returns a copy of the tree with value at all places of a shape, as shapesOf names them.
func damage(tree any, at, shape string, value any) any {
	if at == shape {
		return value
	}
	switch x := tree.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, v := range x {
			if v = damage(v, member(at, name), shape, value); v != any(deleted{}) {
				out[name] = v
			}
		}
		return out
	case []any:
		out := []any{}
		for _, v := range x {
			if v = damage(v, at+"[]", shape, value); v != any(deleted{}) {
				out = append(out, v)
			}
		}
		return out
	}
	return tree
}

// member returns the name of an object's member, the same one for all keys of a map.
func member(at, name string) string {
	named := []string{"Chains", "Maps", "Sets", "Ports", "Links", "Settings", "Options", "OtherConfig"}
	if slices.Contains(named, at[strings.LastIndex(at, ".")+1:]) || strings.ContainsAny(name, ".:/") {
		name = "*"
	}
	return at + "." + name
}

// shapesOf lists the places of a tree, the same one for all items of a list.
func shapesOf(tree any, at string, found map[string]any) {
	if strings.HasSuffix(at, ".Owner") {
		return // of an object; never followed
	}
	found[at] = tree
	switch x := tree.(type) {
	case map[string]any:
		for name, v := range x {
			shapesOf(v, member(at, name), found)
		}
	case []any:
		for _, v := range x {
			shapesOf(v, at+"[]", found)
		}
	}
}

// eachDamage calls do with every damaged variant of a JSON text.
func eachDamage(t *testing.T, text []byte, do func(what string, text []byte)) {
	t.Helper()
	var tree any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&tree); err != nil {
		t.Fatal(err)
	}
	shapes := map[string]any{}
	shapesOf(tree, "", shapes)
	t.Log(len(shapes), "places")
	for _, shape := range slices.Sorted(maps.Keys(shapes)) {
		for _, value := range damages(shapes[shape]) {
			damaged, err := json.Marshal(damage(tree, "", shape, value))
			if err != nil {
				continue // the whole text is deleted
			}
			do(fmt.Sprintf("%s = %#v", shape, value), damaged)
		}
	}
}

// TestDamagedAnswers checks that the command does not panic, whatever one field of an agent's
// answer to `explain --live` holds. The packets of the questions pass one of our bridges, OVN, the
// gateway bridge and the host.
func TestDamagedAnswers(t *testing.T) {
	demo, err := watch.ReadFiles("../../examples/demo", cluster.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	small := *demo
	node := demo.Nodes[0].Name
	small.Nodes, small.EgressIPs = demo.Nodes[:1], nil
	small.Pods = slices.DeleteFunc(slices.Clone(demo.Pods), func(p *cluster.Pod) bool { return p.Node != node })[:1]
	other := func(f *cluster.Frontend) bool { return f.Owner.Name != "web" }
	small.Frontends = slices.DeleteFunc(slices.Clone(demo.Frontends), other)
	wanted, _ := plan.Node(&small, node)
	text, err := datapath.Encode(wanted)
	if err != nil {
		t.Fatal(err)
	}
	decoded, pod := 0, "pod/default/"+small.Pods[0].Owner.Name
	eachDamage(t, text, func(what string, text []byte) {
		defer func() {
			if p := recover(); p != nil {
				t.Errorf("%s: %v\n%s", what, p, debug.Stack())
			}
		}()
		var found datapath.State
		if datapath.Decode(text, &found) != nil {
			return
		}
		decoded++
		_ = datapath.Print(found)
		w := walk.New(walk.World{Snapshot: &small,
			States: map[string]datapath.State{node: datapath.Adopted(wanted, found)}})
		for _, q := range []question.Question{
			{From: pod, To: "svc/default/web"}, {From: "host/" + node, To: "svc/default/web"},
			{From: pod, To: "outside/1.1.1.1:80"},
			{From: "outside", To: "svc/default/web", NodePort: true, Via: node},
		} {
			if e, err := explain.Ask(w, &small, q); err == nil {
				_ = e.Text(explain.Form{All: true, Costs: true})
			}
		}
	})
	t.Logf("%d of %d bytes", decoded, len(text))
}
