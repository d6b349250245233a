// Package page renders the pages of `hairpin ui`: the health of the cluster, its Services, egress
// addresses, policies and problems, a node, a pod, and the path of a packet. It turns values into
// HTML, and does not depend on its callers or the source of the values.
package page

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"slices"
	"sync"

	"hairpin/cluster"
	"hairpin/walk/explain/picture"
	"hairpin/walk/explain/question"
)

//go:embed page.html style.css
var files embed.FS

// pages parses the templates on first use: most processes of this program serve no pages.
var pages = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("pages").Funcs(template.FuncMap{
		"add":  func(a, b int) int { return a + b },
		"node": nodePath, "object": objectPath, "owner": ownerPath,
		// The y coordinate of line i, of a box and of a label.
		"row":   func(top, i int) int { return top + boxTitle + i*line },
		"label": func(y, i int) int { return y + i*labelLine },
	}).ParseFS(files, "page.html"))
})

// Frame is the part that all pages show.
type Frame struct {
	Source string   // the source of the cluster, in words
	Flags  []string // of `hairpin explain`, for the same source
	Live   bool     // whether the real state of the nodes can be read
	// NoHealth says what nodes are, if no agent reports their health.
	NoHealth string
}

// view is the data of a template. Each page has its own part.
type view struct {
	Frame
	Title       string
	Problems    []string
	Bad         *question.BadArgument // of the query
	Home        *homeView
	Services    *servicesView
	Egress      *egressView
	Policies    *policiesView
	AllProblems *problemsView
	Node        *nodeView
	Pod         *podView
	Walk        *walkView
	Failure     string
}

// Style is the style sheet of all pages.
func Style() ([]byte, error) {
	css, err := files.ReadFile("style.css")
	if err != nil {
		return nil, fmt.Errorf("style sheet: %w", err)
	}
	return append(css, picture.Style()...), nil
}

// maxProblems is the largest number of problems on a page.
const maxProblems = 30

func (v *view) render(problems []string) ([]byte, error) {
	v.Problems = slices.Sorted(slices.Values(problems))
	if v.Problems = slices.Compact(v.Problems); len(v.Problems) > maxProblems {
		rest := len(v.Problems) - maxProblems
		v.Problems = append(v.Problems[:maxProblems:maxProblems], fmt.Sprintf("… and %d more", rest))
	}
	var b bytes.Buffer
	if err := pages().ExecuteTemplate(&b, "page", v); err != nil {
		return nil, fmt.Errorf("page %s: %w", v.Title, err)
	}
	return b.Bytes(), nil
}

// Failure renders the page for an error.
func Failure(f Frame, title, message string) ([]byte, error) {
	v := &view{Frame: f, Title: title, Failure: message}
	return v.render(nil)
}

// maxRows is the largest number of rows of a list; users filter it to see others.
const maxRows = 200

// mode returns the mode of the node, or else of the configuration, even if no such mode exists.
func mode(s *cluster.Snapshot, n *cluster.Node) string {
	return cmp.Or(n.Gateway.Mode, s.Config.Gateway.Mode)
}
