package ui_test

import (
	"html"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hairpin/config"
	"hairpin/ui"
	"hairpin/ui/uitest"
)

func demoUI(t *testing.T) string {
	o := ui.Options{}
	o.Dir = "../examples/demo"
	return uitest.Serve(t, o, config.DefaultConfig())
}

// TestUIBadInput checks that each error names the field, and that the reader's input is never
// markup.
func TestUIBadInput(t *testing.T) {
	base := demoUI(t)
	const good = "from=host/node-a&to=svc/default/web"
	for _, c := range []struct {
		path   string
		status int
		want   string
	}{
		{"/walk?" + good, 200, "Delivered to pod default/pod-c1 port 8080"},
		{"/walk", 200, "choose a Service"},
		{"/walk?from=host/node-a", 200, "choose a Service"},
		{"/walk?from=node-a&to=svc/default/web", 400, "<strong>from</strong> <code>node-a</code>: must be pod/"},
		{"/walk?from=host/node-a&to=svc/default/none", 400,
			"<strong>to</strong> <code>svc/default/none</code>: there is no Service"},
		{"/walk?" + good + "&proto=icmp", 400, "<strong>proto</strong> <code>icmp</code>: must be tcp, udp or sctp"},
		{"/walk?" + good + "&family=5", 400, "<strong>family</strong> <code>5</code>: must be 4 or 6"},
		{"/walk?" + good + "&endpoint=10.0.0.1", 400,
			"<strong>endpoint</strong> <code>10.0.0.1</code>: the Service has no such endpoint"},
		{"/walk?" + good + "&via=x", 400, "<strong>via</strong> <code>x</code>: there is no Node"},
		{"/walk?" + good + "&node-port=yes", 400, "<strong>node-port</strong> <code>yes</code>: must be 1"},
		{"/walk?" + good + "&colour=red", 400, "<strong>colour</strong> <code>red</code>: there is no such field"},
		{"/walk?" + good + "&via=node-a&via=node-b", 400, "<strong>via</strong> <code>node-b</code>: is given twice"},
		{"/walk?from=" + strings.Repeat("x", 5000), 400, "is longer than 400 bytes"},
		{"/walk?from=%zz", 400, "invalid URL escape"},
		{"/walk?from=host/node-a;to=x", 400, "semicolon"},
		{"/walk?from=%3Cscript%3Ealert(1)%3C/script%3E&to=%00%FF", 400, "&lt;script&gt;alert(1)&lt;/script&gt;"},
		{"/walk.svg?" + good, 200, "<svg"},
		{"/walk.svg?from=x", 400, `FROM "x": must be`},
		{"/walk.json?" + good, 200, `"delivered": true`},
		{"/walk.json?from=x", 400, `FROM "x": must be`},
		{"/services", 200, `href="/walk?to=svc/default/web:tcp"`},
		{"/services?find=%3Cb%3E", 200, "No Service has “&lt;b&gt;” in its name"},
		{"/egress", 200, "no EgressIP and no EgressService"},
		{"/policies?find=x", 200, "No policy has “x” in its name"},
		{"/problems", 200, "No object and no node has a problem."},
		{"/walk?" + good, 200, `<a href="/pod/default/pod-c1">pod/default/pod-c1</a>`},
		{"/node/node-a", 200, "ovn_cluster_router"},
		{"/node/node-a?find=%3Cb%3E", 200, "No Service has “&lt;b&gt;” in its name"},
		{"/node/node-a?colour=red", 400, "there is no such field"},
		{"/node/node-x", 404, "There is no Node"},
		{"/node/..%2f..%2fetc", 404, "There is no Node"},
		{"/nothing", 404, "There is nothing at /nothing"},
		{"/?find=node-b", 200, "node-b"},
	} {
		status, body, header := uitest.Fetch(t, "GET", base+c.path, "")
		if status == http.StatusSeeOther {
			status, body, header = uitest.Fetch(t, "GET", base+header.Get("Location"), "")
		}
		if status != c.status || !strings.Contains(body, c.want) || strings.Contains(body, "<script") {
			t.Errorf("%s: %d, without %q:\n%s", c.path, status, c.want, body)
		}
		if strings.Contains(header.Get("Content-Security-Policy"), "script") {
			t.Errorf("%s: scripts are allowed", c.path)
		}
	}
}

// TestUIGuarded checks that a page of another site cannot send requests through the reader's
// browser, that no other machine can connect, and that nothing can be changed.
func TestUIGuarded(t *testing.T) {
	base := demoUI(t)
	u, err := url.Parse(base)
	noError(t, err)
	for host, want := range map[string]int{
		"localhost": 200, "localhost:1": 200, "127.0.0.1": 200, "[::1]:8090": 200, "127.9.9.9": 200,
		"evil.example": 421, "evil.example:" + u.Port(): 421, "127.0.0.1.evil.example": 421,
		"localhost.evil.example": 421, "172.18.0.3": 421, "[::]": 421,
	} {
		if status, _, _ := uitest.Fetch(t, "GET", base+"/", host); status != want {
			t.Errorf("Host %s: %d instead of %d", host, status, want)
		}
	}
	for _, c := range []struct {
		name, value string
		want        int
	}{
		{"Sec-Fetch-Site", "none", 200}, {"Sec-Fetch-Site", "same-origin", 200}, {"Origin", "http://" + u.Host, 200},
		// another port of localhost is the same site
		{"Sec-Fetch-Site", "cross-site", 403}, {"Sec-Fetch-Site", "same-site", 403},
		{"Origin", "http://evil.example", 403}, {"Origin", "null", 403}, {"Origin", "http://127.0.0.1:1", 403},
	} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+
			"/walk?from=host/node-a&to=svc/default/web", nil)
		noError(t, err)
		q.Header.Set(c.name, c.value)
		a, err := http.DefaultClient.Do(q)
		noError(t, err)
		_ = a.Body.Close()
		if a.StatusCode != c.want {
			t.Errorf("%s: %s: %d instead of %d", c.name, c.value, a.StatusCode, c.want)
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH"} {
		if status, _, _ := uitest.Fetch(t, method, base+"/walk", ""); status != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, status)
		}
	}
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "nothing", "127.0.0.1:99999"} {
		o := ui.Options{Listen: address}
		o.Dir = "../examples/demo"
		if err := ui.Serve(t.Context(), io.Discard, o, config.DefaultConfig()); err == nil ||
			!strings.HasPrefix(err.Error(), `--listen "`+address+`": `) {
			t.Errorf("--listen %s: %v", address, err)
		}
	}
}

// TestUIAddresses checks that the URL of a form is redirected to a shorter one.
func TestUIAddresses(t *testing.T) {
	base := demoUI(t)
	for from, to := range map[string]string{
		"/walk?from=host%2Fnode-a&to=svc%2Fdefault%2Fweb%3Atcp&address=&family=&via=&proto=": "/walk?from=host/node-a&to=svc/default/web:tcp",
		"/walk?to=&from=outside&client=192.0.2.7&address=[2001:db8::1]:80&node-port=1":       "/walk?from=outside/192.0.2.7&to=%5B2001:db8::1%5D:80&node-port=1",
		"/walk?from=&to=": "/walk",
	} {
		if status, _, header := uitest.Fetch(t, "GET", base+from, ""); status != http.StatusSeeOther ||
			header.Get("Location") != to {
			t.Errorf("%s: %d to %s, instead of %s", from, status, header.Get("Location"), to)
		}
		if status, _, header := uitest.Fetch(t, "GET", base+to, ""); status == http.StatusSeeOther {
			t.Errorf("%s leads on to %s", to, header.Get("Location"))
		}
	}
}

// TestUILinks follows some hundred links of the pages and checks that each leads to a page.
func TestUILinks(t *testing.T) {
	base := demoUI(t)
	href := regexp.MustCompile(`href="(/[^"]*)"`)
	todo, seen, walks := []string{"/"}, map[string]bool{"/": true}, 0
	for len(todo) > 0 && len(seen) < 3000 && walks < 120 {
		path := todo[0]
		todo = todo[1:]
		status, body, _ := uitest.Fetch(t, "GET", base+path, "")
		if status != http.StatusOK {
			t.Fatalf("%s: %d", path, status)
		}
		if strings.HasPrefix(path, "/walk?") {
			if walks++; !strings.Contains(body, `id="verdict"`) {
				t.Errorf("%s: no verdict", path)
			}
		}
		for _, m := range href.FindAllStringSubmatch(body, -1) {
			if link := html.UnescapeString(m[1]); !seen[link] {
				seen[link] = true
				todo = append(todo, link)
			}
		}
		// complete choices go first
		slices.SortStableFunc(todo, func(a, b string) int { return len(b) - len(a) })
	}
	if walks < 50 {
		t.Errorf("%d walks among %d links", walks, len(seen))
	}
}

// TestUIFolders checks a folder that is empty, and one that does not exist.
func TestUIFolders(t *testing.T) {
	o := ui.Options{}
	o.Dir = t.TempDir()
	base := uitest.Serve(t, o, config.DefaultConfig())
	if status, body, _ := uitest.Fetch(t, "GET", base+"/", ""); status != 200 ||
		!strings.Contains(body, "The cluster has no Node") {
		t.Errorf("%d %s", status, body)
	}
	noError(t, os.WriteFile(filepath.Join(o.Dir, "node.yaml"),
		[]byte("kind: Node\napiVersion: v1\nmetadata: {name: n1}\n"), 0o644))
	if status, body, _ := uitest.Fetch(t, "GET", base+"/", ""); status != 200 ||
		!strings.Contains(body, `href="/node/n1"`) {
		t.Errorf("%d %s", status, body)
	}
	if status, body, _ := uitest.Fetch(t, "GET", base+"/node/n1", ""); status != 200 ||
		!strings.Contains(body, "cannot be computed") || !strings.Contains(body, "Node/n1: ") {
		t.Errorf("%d %s", status, body)
	}
	noError(t, os.RemoveAll(o.Dir))
	if status, body, _ := uitest.Fetch(t, "GET", base+"/", ""); status != 503 ||
		!strings.Contains(body, "The cluster cannot be read") {
		t.Errorf("%d %s", status, body)
	}
	o.Listen = "127.0.0.1:0"
	if err := ui.Serve(t.Context(), io.Discard, o, config.DefaultConfig()); err == nil ||
		!strings.Contains(err.Error(), o.Dir) {
		t.Errorf("a folder that is none: %v", err)
	}
}

// TestUIProblems checks that a problem leads to the page of its object.
func TestUIProblems(t *testing.T) {
	o := ui.Options{}
	o.Dir = t.TempDir()
	noError(t, os.WriteFile(filepath.Join(o.Dir, "objects.yaml"),
		[]byte(`{kind: Node, apiVersion: v1, metadata: {name: n1}}
---
{kind: Service, apiVersion: v1, metadata: {name: "web", namespace: shop}, spec: {clusterIP: 10.96.0.1,
  clusterIPs: [10.96.0.1], ports: [{port: 80, protocol: TCP}], externalTrafficPolicy: Nearby, type: NodePort}}
---
{kind: NetworkPolicy, apiVersion: networking.k8s.io/v1, metadata: {name: p, namespace: shop},
  spec: {podSelector: {matchExpressions: [{key: a, operator: Near}]}}}
`), 0o644))
	base := uitest.Serve(t, o, config.DefaultConfig())
	_, body, _ := uitest.Fetch(t, "GET", base+"/problems", "")
	for _, want := range []string{`<a href="/services?find=shop/web">Service/shop/web: spec.externalTrafficPolicy: `,
		`<a href="/policies?find=NetworkPolicy/shop/p">NetworkPolicy/shop/p: `} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q:\n%s", want, body)
		}
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
