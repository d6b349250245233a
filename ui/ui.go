package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"hairpin/cluster"
	"hairpin/config"
	"hairpin/kube"
	"hairpin/kubeapi"
	"hairpin/ops"
	"hairpin/plan"
	"hairpin/policy"
	"hairpin/report"
	"hairpin/ui/page"
	"hairpin/walk/explain/picture"
	"hairpin/walk/explain/question"
	"hairpin/watch"
)

// Options set the listen address of the pages, and the cluster that they show.
type Options struct {
	ExplainOptions        // without a question: it comes from the reader
	Listen         string // address and port, which are loopback without Secure
	// Secure serves the pages by TLS to users with a token that may get AccessPath. The cluster is
	// that of the API. No agent is asked, because that needs the right to run commands in the
	// agents' pods.
	Secure           bool
	Certificate, Key string // PEM files for Secure; empty = a self-signed certificate
}

// AccessPath is the path that users of the pages must be allowed to get, as a permission of RBAC
// for nonResourceURLs. No server has it.
const AccessPath = "/hairpin/ui"

// Serve serves pages that show the nodes and the path of packets, until ctx ends. Without Secure,
// every user who is logged in on this machine can read them.
func Serve(ctx context.Context, w io.Writer, o Options, c config.Config) error {
	if !o.Secure {
		return serve(ctx, w, o, c, nil)
	}
	if o.Dir != "" || o.EveryNode {
		return errors.New("--secure is for pages of the API: it has no --filename, --all or --context")
	}
	client, err := kube.Connect(c.Process.Kubeconfig, &kube.Reach{})
	if err != nil {
		return err
	}
	return serve(ctx, w, o, c, client)
}

// serve serves the pages. client is that of Secure.
func serve(ctx context.Context, w io.Writer, o Options, c config.Config, client *kubeapi.Client) error {
	l, err := listen(o.Listen, client != nil)
	if err != nil {
		return err
	}
	u := &ui{o: o.ExplainOptions, c: c, frame: frameOf(o.ExplainOptions, c), client: client}
	if client != nil {
		u.frame = page.Frame{Source: "Kubernetes API", Flags: []string{"--all"},
			NoHealth: "in the API; kubectl hairpin status asks their agents"}
	}
	s, err := u.snapshot(ctx)
	if err == nil {
		err = checkFlags(o.Flags, s)
	}
	if err != nil { // better reported here than on every page
		return errors.Join(err, l.Close())
	}
	if client != nil {
		return u.serveSecure(ctx, w, l, o)
	}
	srv := &http.Server{Handler: guarded(u.handler(), "http"), ReadHeaderTimeout: 10 * time.Second,
		MaxHeaderBytes: 1 << 16}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	fmt.Fprintf(w, "%s: http://%s/ (Ctrl-C ends)\n", u.frame.Source, l.Addr())
	if err := srv.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve pages: %w", err)
	}
	return nil
}

// serveSecure serves the pages to authorized users. Probes need no token.
func (u *ui) serveSecure(ctx context.Context, w io.Writer, l net.Listener, o Options) error {
	mux := http.NewServeMux()
	mux.Handle("/", ops.NewAuthorizedPages(guarded(u.handler(), "https"), kube.Reviewer{Client: u.client},
		AccessPath))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n") // client disconnected
	})
	fmt.Fprintf(w, "%s: https://%s/\n", u.frame.Source, l.Addr())
	return ops.ServeTLS(ctx, l, mux, ops.ServerTLS(o.Certificate, o.Key))
}

// listen listens on an address, which must be loopback if clients are not authenticated.
func listen(address string, secure bool) (net.Listener, error) {
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--listen %q: %w", address, err)
	}
	if !secure && !a.IP.IsLoopback() {
		return nil,
			fmt.Errorf("--listen %q: is not a loopback address, such as 127.0.0.1:8090: the pages are "+
				"for this machine only without --secure", address)
	}
	l, err := net.ListenTCP("tcp", a)
	if err != nil {
		return nil, fmt.Errorf("--listen %q: %w", address, err)
	}
	return l, nil
}

// guarded rejects requests that pages of other sites make through the reader's browser: by a name
// that resolves to this address (DNS rebinding), or by a link, a frame or a picture (Fetch
// Metadata). It forbids scripts and content from elsewhere. Pages by https may have any name: a
// browser sends the token only to the name for which its user entered it.
func guarded(h http.Handler, scheme string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		name := q.Host
		if host, _, err := net.SplitHostPort(name); err == nil {
			name = host
		}
		if ip := net.ParseIP(strings.Trim(name, "[]")); scheme == "http" && name != "localhost" && !ip.IsLoopback() {
			http.Error(w, "these pages are at localhost only", http.StatusMisdirectedRequest)
			return
		}
		site, origin := q.Header.Get("Sec-Fetch-Site"), q.Header.Get("Origin")
		if site != "" && site != "same-origin" && site != "none" || origin != "" && origin != scheme+"://"+q.Host {
			http.Error(w, "another site asks: open the address of these pages yourself", http.StatusForbidden)
			return
		}
		header := w.Header()
		header.Set("Content-Security-Policy",
			"default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; "+
				"frame-ancestors 'none'")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		h.ServeHTTP(w, q)
	})
}

// ui serves the pages.
type ui struct {
	o      ExplainOptions
	c      config.Config
	frame  page.Frame
	client *kubeapi.Client // of Options.Secure, else nil: only the API is read

	mu   sync.Mutex // one request reads the API, the others wait for it
	last *cluster.Snapshot
	read time.Time

	agents agents
}

// freshFor is how long a Snapshot of the API is reused: for a few clicks.
const freshFor = 5 * time.Second

func (u *ui) snapshot(ctx context.Context) (*cluster.Snapshot, error) {
	if u.o.Dir != "" { // also if the folder is empty now
		return watch.ReadFiles(u.o.Dir, u.c.Cluster)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last != nil && time.Since(u.read) < freshFor {
		return u.last, nil
	}
	read := func() (*cluster.Snapshot, error) { return explainedSnapshot(ctx, u.o, u.c) }
	if u.client != nil {
		read = func() (*cluster.Snapshot, error) { return readCluster(ctx, u.client, u.c) }
	}
	s, err := read()
	if err != nil {
		return nil, err
	}
	u.last, u.read = s, time.Now()
	return s, nil
}

func frameOf(o ExplainOptions, c config.Config) page.Frame {
	switch {
	case o.Dir != "":
		return page.Frame{Source: "Manifests of " + o.Dir, Flags: []string{"-f", o.Dir},
			NoHealth: "in manifests, which have no health"}
	case o.EveryNode:
		f := page.Frame{Source: "Kubernetes API", Flags: []string{"--all"}, Live: true}
		for _, x := range [][2]string{{"--kubeconfig", c.Process.Kubeconfig}, {"--context", o.Context}} {
			if x[1] != "" {
				f.Flags = append(f.Flags, x[0], x[1])
			}
		}
		if o.Context != "" {
			f.Source += ", context " + o.Context
		}
		return f
	}
	return page.Frame{Source: "Agent of this node", Live: true}
}

func (u *ui) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", u.home)
	mux.HandleFunc("GET /services", u.services)
	mux.HandleFunc("GET /egress", u.egress)
	mux.HandleFunc("GET /policies", u.policies)
	mux.HandleFunc("GET /problems", u.problems)
	mux.HandleFunc("GET /node/{name}", u.node)
	mux.HandleFunc("GET /pod/{namespace}/{name}", u.pod)
	mux.HandleFunc("GET /pod/{namespace}/{name}/policies.json", u.podPolicies)
	mux.HandleFunc("GET /walk", u.walk)
	mux.HandleFunc("GET /walk.svg", u.picture)
	mux.HandleFunc("GET /walk.json", u.steps)
	mux.HandleFunc("GET /style.css", func(w http.ResponseWriter, _ *http.Request) {
		css, err := page.Style()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		_, _ = w.Write(css) // client disconnected
	})
	mux.HandleFunc("GET /", func(w http.ResponseWriter, q *http.Request) {
		u.fail(w, http.StatusNotFound, "No such page", fmt.Sprintf("There is nothing at %s.", q.URL.Path))
	})
	return mux
}

// send writes a page.
func (u *ui) send(w http.ResponseWriter, status int, html []byte, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(html) // client disconnected
}

func (u *ui) fail(w http.ResponseWriter, status int, title, message string) {
	html, err := page.Failure(u.frame, title, message)
	u.send(w, status, html, err)
}

// clusterOrFail returns the cluster, or writes an error page if it cannot be read.
func (u *ui) clusterOrFail(w http.ResponseWriter, q *http.Request) *cluster.Snapshot {
	s, err := u.snapshot(q.Context())
	if err != nil {
		u.fail(w, http.StatusServiceUnavailable, "The cluster cannot be read", err.Error())
		return nil
	}
	return s
}

// question reads a query. If the query is not in its canonical form, question redirects to that
// form and returns false.
func (u *ui) question(w http.ResponseWriter, q *http.Request) (page.Query, *question.BadArgument, bool) {
	values, err := url.ParseQuery(q.URL.RawQuery)
	if err != nil {
		return page.Query{}, &question.BadArgument{Field: "query", Word: "", Err: err}, true
	}
	ask, bad := page.ParseQuery(values)
	if bad == nil && ask.Encode() != q.URL.RawQuery {
		http.Redirect(w, q, ask.At(q.URL.Path), http.StatusSeeOther)
		return ask, nil, false
	}
	return ask, bad, true
}

func (u *ui) node(w http.ResponseWriter, q *http.Request) {
	s := u.clusterOrFail(w, q)
	if s == nil {
		return
	}
	n := s.Node(q.PathValue("name"))
	if n == nil {
		u.fail(w, http.StatusNotFound, "No such Node", fmt.Sprintf("There is no Node %q.", q.PathValue("name")))
		return
	}
	ask, bad := page.ParseQuery(q.URL.Query(), "find")
	status := http.StatusOK
	if bad != nil {
		status = http.StatusBadRequest
	}
	state, problems := plan.Node(s, n.Name)
	html, err := page.Node(u.frame, s, n, state, ask, strings.TrimSpace(q.FormValue("find")), bad,
		problemLines(s.Problems, problems))
	u.send(w, status, html, err)
}

// described returns the policies of a pod. If it is nil, the response is written.
func (u *ui) described(w http.ResponseWriter, q *http.Request) (*cluster.Snapshot, *policy.PodDescription) {
	s := u.clusterOrFail(w, q)
	if s == nil {
		return nil, nil
	}
	name := q.PathValue("namespace") + "/" + q.PathValue("name")
	p := policy.DescribePod(s, name)
	if p == nil {
		u.fail(w, http.StatusNotFound, "No such Pod",
			fmt.Sprintf("There is no Pod %q with an address of its own.", name))
	}
	return s, p
}

func (u *ui) pod(w http.ResponseWriter, q *http.Request) {
	if s, p := u.described(w, q); p != nil {
		html, err := page.Pod(u.frame, p, problemLines(s.Problems))
		u.send(w, http.StatusOK, html, err)
	}
}

// podPolicies serves the policies of a pod as `hairpin policies -o json` prints them.
func (u *ui) podPolicies(w http.ResponseWriter, q *http.Request) {
	if _, p := u.described(w, q); p != nil {
		w.Header().Set("Content-Type", "application/json")
		_, _ = report.PrintAs(w, "json", p) // client disconnected
	}
}

func problemLines(lists ...[]cluster.Problem) []string {
	var lines []string
	for _, p := range cluster.SortProblems(slices.Concat(lists...)) {
		lines = append(lines, p.Error())
	}
	return lines
}

// asked returns the cluster and the question. If ok is false, it has written the response.
func (u *ui) asked(w http.ResponseWriter,
	q *http.Request) (s *cluster.Snapshot, ask page.Query, bad *question.BadArgument, ok bool) {
	if s = u.clusterOrFail(w, q); s == nil {
		return nil, ask, nil, false
	}
	ask, bad, ok = u.question(w, q)
	return s, ask, bad, ok
}

func (u *ui) walk(w http.ResponseWriter, q *http.Request) {
	s, ask, bad, ok := u.asked(w, q)
	if !ok {
		return
	}
	problems := problemLines(s.Problems)
	var a *page.Answer
	if bad == nil && ask.From != "" && ask.To != "" {
		var more []string
		var err error
		if a, more, err = u.answer(q.Context(), s, ask); err != nil && !errors.As(err, &bad) {
			u.fail(w, http.StatusServiceUnavailable, "The packet cannot be followed", err.Error())
			return
		}
		problems = append(problems, more...)
	}
	status := http.StatusOK
	if bad != nil {
		status = http.StatusBadRequest
	}
	html, err := page.Walk(u.frame, s, ask, a, bad, problems)
	u.send(w, status, html, err)
}

// answer follows the packet. problems are those of objects on the nodes of its path.
func (u *ui) answer(ctx context.Context, s *cluster.Snapshot,
	q page.Query) (a *page.Answer, problems []string, err error) {
	o := u.o
	o.Question = question.Question{From: q.From, To: q.To, Endpoint: q.Endpoint, Via: q.Via, NodePort: q.NodePort}
	o.Proto, o.IPFamily = q.Proto, q.Family
	if err := o.parse(); err != nil {
		return nil, nil, err
	}
	a = &page.Answer{}
	var messages bytes.Buffer
	if q.Live && u.frame.Live {
		a.Explanation, a.Fault, err = walkLive(ctx, &messages, o, u.c)
		if err != nil && !errors.As(err, new(*question.BadArgument)) {
			a.Notes = append(a.Notes, "Not compared with what is really there: "+err.Error())
		} else if err != nil {
			return nil, nil, err
		}
	}
	if a.Explanation == nil {
		if a.Explanation, err = explainIn(&messages, s, o.Question); err != nil {
			return nil, nil, err
		}
	}
	for line := range strings.Lines(messages.String()) {
		if p, ok := strings.CutPrefix(line, problemPrefix); ok {
			problems = append(problems, strings.TrimSpace(p))
		} else {
			a.Notes = append(a.Notes, strings.TrimSpace(line))
		}
	}
	return a, problems, nil
}

// answerAlone returns the answer without a page, for a file. If it is nil, the response is written.
func (u *ui) answerAlone(w http.ResponseWriter, q *http.Request) *page.Answer {
	s, ask, bad, ok := u.asked(w, q)
	if !ok {
		return nil
	}
	if bad != nil {
		http.Error(w, bad.Error(), http.StatusBadRequest)
		return nil
	}
	a, _, err := u.answer(q.Context(), s, ask)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil
	}
	return a
}

// picture serves the picture of a walk alone, to be saved.
func (u *ui) picture(w http.ResponseWriter, q *http.Request) {
	if a := u.answerAlone(w, q); a != nil {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		w.Header().Set("Content-Type", "image/svg+xml")
		_, _ = io.WriteString(w, picture.SVG(a.Explanation)) // client disconnected
	}
}

// steps serves a walk as `hairpin explain -o json` prints it.
func (u *ui) steps(w http.ResponseWriter, q *http.Request) {
	a := u.answerAlone(w, q)
	if a == nil {
		return
	}
	text, err := a.Explanation.JSON()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // client disconnected
}
