// Package page draws the pages of `hairpin ui`: the nodes, one node's state, and a packet's path.
// Values in, HTML out: this package does not know its callers nor the source of the values.
package page

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/walk/explain"
)

//go:embed page.html style.css
var files embed.FS

var pages = template.Must(template.New("pages").Funcs(template.FuncMap{
	"add": func(a, b int) int { return a + b },
	"row": func(top, i int) int { return top + boxTitle + i*line }, // of a box's lines
}).ParseFS(files, "page.html"))

// Frame is what every page tells.
type Frame struct {
	Source string   // where the cluster was read, in words
	Flags  []string // of `hairpin explain`, to read the same
	Live   bool     // whether it can be asked what is really on the nodes
}

// view is what a template gets. Each page has its own part.
type view struct {
	Frame
	Title    string
	Problems []string
	Bad      *explain.BadArgument // of the query
	Nodes    *nodesView
	Node     *nodeView
	Walk     *walkView
	Failure  string
}

// Style is the style sheet of all pages.
func Style() ([]byte, error) {
	css, err := files.ReadFile("style.css")
	if err != nil {
		return nil, fmt.Errorf("style sheet: %w", err)
	}
	return append(css, explain.Style()...), nil
}

// mostProblems is how many are told on a page.
const mostProblems = 30

func (v *view) render(problems []string) ([]byte, error) {
	v.Problems = slices.Sorted(slices.Values(problems))
	if v.Problems = slices.Compact(v.Problems); len(v.Problems) > mostProblems {
		rest := len(v.Problems) - mostProblems
		v.Problems = append(v.Problems[:mostProblems:mostProblems], fmt.Sprintf("… and %d more", rest))
	}
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, "page", v); err != nil {
		return nil, fmt.Errorf("page %s: %w", v.Title, err)
	}
	return b.Bytes(), nil
}

// Failure is the page for what cannot be shown.
func Failure(f Frame, title, message string) ([]byte, error) {
	v := &view{Frame: f, Title: title, Failure: message}
	return v.render(nil)
}

// nodesView is the list of nodes.
type nodesView struct {
	Find string
	Rows []nodeRow
	More int
}

type nodeRow struct {
	Name, Link, Mode string
	ID, Pods         int
	Addresses        []string
}

// mostRows is how many rows a list shows; users narrow it to find others.
const mostRows = 200

// Nodes is the page with all nodes. find is a part of their names.
func Nodes(f Frame, s *cluster.Snapshot, find string, problems []string) ([]byte, error) {
	pods := map[string]int{}
	for _, p := range s.Pods {
		pods[p.Node]++
	}
	n := &nodesView{Find: find}
	for _, x := range s.Nodes {
		switch {
		case !strings.Contains(x.Name, find):
		case len(n.Rows) == mostRows:
			n.More++
		default:
			r := nodeRow{Name: x.Name, Link: nodePath(x.Name), Mode: mode(s, x), ID: x.ID, Pods: pods[x.Name]}
			for _, a := range x.Addresses {
				r.Addresses = append(r.Addresses, a.String())
			}
			n.Rows = append(n.Rows, r)
		}
	}
	v := &view{Frame: f, Title: "Nodes", Nodes: n}
	return v.render(problems)
}

// mode is what a node says of itself, or the configuration, even where there is no such mode.
func mode(s *cluster.Snapshot, n *cluster.Node) string {
	return cmp.Or(n.Gateway.Mode, s.Config.Gateway.Mode)
}
