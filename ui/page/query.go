package page

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/walk/explain/question"
)

// Query is a question in the URL of a page. Its values are those of `hairpin explain`.
type Query struct {
	From, To, Proto, Family, Endpoint, Via string
	NodePort, Live                         bool
}

// longest is the longest value of a field in bytes: more than the longest name of Kubernetes with
// its namespace and port.
const longest = 400

// Fields of the form that are not in a URL: they are alternatives to from and to.
const (
	formAddress = "address"
	formClient  = "client"
)

// texts lists the fields with a text, in the order of a URL.
func (q *Query) texts() []struct {
	key string
	to  *string
} {
	return []struct {
		key string
		to  *string
	}{{"from", &q.From}, {"to", &q.To}, {"proto", &q.Proto}, {"family", &q.Family}, {"endpoint", &q.Endpoint},
		{"via", &q.Via}}
}

// switches lists the fields that are on or off.
func (q *Query) switches() []struct {
	key string
	to  *bool
} {
	return []struct {
		key string
		to  *bool
	}{{"node-port", &q.NodePort}, {"live", &q.Live}}
}

// ParseQuery reads the query of a URL. extra are further keys of the page.
func ParseQuery(v url.Values, extra ...string) (Query, *question.BadArgument) {
	var q Query
	known := append([]string{formAddress, formClient}, extra...)
	for _, w := range q.texts() {
		*w.to = strings.TrimSpace(v.Get(w.key))
		known = append(known, w.key)
	}
	for _, s := range q.switches() {
		known = append(known, s.key)
		switch value := v.Get(s.key); value {
		case "":
		case "1":
			*s.to = true
		default:
			return q, &question.BadArgument{Field: s.key, Word: short(value),
				Err: errors.New("must be 1, or be left out")}
		}
	}
	var keys []string
	for key := range v {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		switch values := v[key]; {
		case !slices.Contains(known, key):
			return q, &question.BadArgument{Field: short(key), Word: short(v.Get(key)),
				Err: fmt.Errorf("there is no such field; there are %s", strings.Join(known, ", "))}
		case len(values) > 1:
			return q, &question.BadArgument{Field: key, Word: short(values[1]), Err: errors.New("is given twice")}
		case len(values[0]) > longest:
			return q, &question.BadArgument{Field: key, Word: short(values[0]),
				Err: fmt.Errorf("is longer than %d bytes", longest)}
		}
	}
	if a := strings.TrimSpace(v.Get(formAddress)); a != "" {
		q.To = a
	}
	if c := strings.TrimSpace(v.Get(formClient)); c != "" && q.From == "outside" {
		q.From += "/" + c
	}
	return q, nil
}

func short(s string) string {
	if len(s) > 60 {
		return strings.ToValidUTF8(s[:60], "") + "…"
	}
	return s
}

// Encode returns the query in a readable form: without empty fields, always in the same order.
func (q Query) Encode() string {
	var parts []string
	for _, w := range q.texts() {
		if *w.to != "" {
			parts = append(parts, w.key+"="+escape(*w.to))
		}
	}
	for _, s := range q.switches() {
		if *s.to {
			parts = append(parts, s.key+"=1")
		}
	}
	return strings.Join(parts, "&")
}

// escape is url.QueryEscape, except for characters that are legal in a query (RFC 3986, 3.4).
func escape(s string) string {
	return strings.NewReplacer("%2F", "/", "%3A", ":").Replace(url.QueryEscape(s))
}

// At returns the URL of a page with the query.
func (q Query) At(path string) string {
	if e := q.Encode(); e != "" {
		return path + "?" + e
	}
	return path
}

// Link returns the URL of the page with the packet's path.
func (q Query) Link() string { return q.At("/walk") }

// Picture returns the URL of the picture alone.
func (q Query) Picture() string { return q.At("/walk.svg") }

// JSON returns the URL of the steps alone.
func (q Query) JSON() string { return q.At("/walk.json") }

// next returns the URL that a choice leads to: the packet's path if both ends are chosen, else the
// node's page to choose the other end.
func (q Query) next(node string) string {
	if q.From != "" && q.To != "" {
		return q.Link()
	}
	return q.At(nodePath(node))
}

func nodePath(name string) string { return "/node/" + url.PathEscape(name) }

// ownerPath returns the page with the object at the start of a text, KIND/NAMESPACE/NAME or
// KIND/NAME, which ends or is followed by a colon. It is empty if there is none.
func ownerPath(text string) string {
	object, _, _ := strings.Cut(text, ": ")
	o := cluster.ParseOwner(object)
	name := strings.TrimPrefix(object, o.Kind+"/")
	switch o.Kind {
	case "Node":
		return nodePath(o.Name)
	case "Pod":
		return podPath(o)
	case "Service":
		return "/services?find=" + escape(name)
	case "EgressIP", "EgressService":
		return "/egress?find=" + escape(name)
	case "NetworkPolicy", "ClusterNetworkPolicy":
		return "/policies?find=" + escape(object)
	}
	return ""
}

// objectPath returns the page of pod/NAMESPACE/NAME or host/NODE, empty for others.
func objectPath(word string) string {
	kind, name, _ := strings.Cut(word, "/")
	namespace, pod, named := strings.Cut(name, "/")
	switch {
	case kind == "host" && name != "":
		return nodePath(name)
	case kind == "pod" && named:
		return podPath(cluster.Owner{Namespace: namespace, Name: pod})
	}
	return ""
}

// Command returns the command line for the same question.
func (q Query) Command(flags []string) string {
	words := []string{command("explain", flags, q.From, q.To)}
	for _, w := range q.texts() {
		if w.key != "from" && w.key != "to" && *w.to != "" {
			words = append(words, "--"+w.key+" "+quote(*w.to))
		}
	}
	for _, s := range q.switches() {
		if *s.to {
			words = append(words, "--"+s.key)
		}
	}
	return strings.Join(words, " ")
}

// command returns the command line that prints the same in a terminal.
func command(name string, flags []string, args ...string) string {
	words := []string{"hairpin " + name}
	for _, w := range slices.Concat(flags, args) {
		words = append(words, quote(w))
	}
	return strings.Join(words, " ")
}

// quote quotes a word for a shell.
func quote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("/.:_-@%+,", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
