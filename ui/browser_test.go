package ui_test

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"hairpin/config"
	"hairpin/ui"
	"hairpin/ui/uitest"
)

var screenshots = flag.String("screenshots", "", "folder for pictures of the pages that the test sees")

// browser starts a real browser without a window.
func browser(t *testing.T) context.Context {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium-headless-shell", "chromium"} {
		if p, err := exec.LookPath(name); err == nil && path == "" {
			path = p
		}
	}
	if path == "" {
		t.Skip("no browser: lab/setup.sh tests installs one")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // for all of the test, on a busy machine
	t.Cleanup(cancel)
	ctx, stop := chromedp.NewExecAllocator(ctx, append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()))...)
	t.Cleanup(stop)
	ctx, end := chromedp.NewContext(ctx)
	t.Cleanup(end)
	return ctx
}

// tab is a page in the browser.
type tab struct {
	t   *testing.T
	ctx context.Context
}

func (b tab) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

func (b tab) text(selector string) string {
	b.t.Helper()
	text, err := chromedp.Run(b.ctx, chromedp.TextContent(selector))
	if err != nil {
		b.t.Fatalf("%s: %v", selector, err)
	}
	return strings.Join(strings.Fields(text), " ")
}

func (b tab) number(expression string) float64 {
	b.t.Helper()
	n, err := chromedp.Run(b.ctx, chromedp.Evaluate[float64](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return n
}

// value returns the text that an expression computes.
func (b tab) value(expression string) string {
	b.t.Helper()
	s, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return s
}

// scheme sets the browser's preference for light or dark.
func (b tab) scheme(name string) {
	b.t.Helper()
	b.do(name, chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
		return err
	}))
}

// keep saves a screenshot of the page, if requested.
func (b tab) keep(name string) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644)
	}
	if err != nil {
		b.t.Error(err)
	}
}

// contrast computes the contrast of elements' text with their background (WCAG 2.2, 1.4.3) and
// returns the lowest.
const contrast = `(selector => {
	const rgb = c => c.match(/[\d.]+/g).map(Number);
	const light = c => { const [r, g, b] = rgb(c).slice(0, 3).map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126*r + 0.7152*g + 0.0722*b };
	const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (rgb(c)[3] !== 0) return c } return 'rgb(255, 255, 255)' };
	const svg = e => e.closest('svg') !== null;
	return Math.min(...[...document.querySelectorAll(selector)].filter(e => e.getClientRects().length).map(e => {
		const a = light(svg(e) ? getComputedStyle(e).fill : getComputedStyle(e).color), b = light(behind(svg(e) ? e.closest('svg') : e));
		return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) }));
})`

// overlaps returns the texts of a picture that cover each other, leave their box or the picture, or
// are crossed by a line, and the boxes that cover each other.
const overlaps = `(selector => {
	const svg = document.querySelector(selector), list = [];
	const over = (a, b, by) => a.left < b.right - by && b.left < a.right - by && a.top < b.bottom - by && b.top < a.bottom - by;
	const inside = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
	const rect = e => e.getBoundingClientRect(), all = rect(svg);
	const texts = [...svg.querySelectorAll('text:not(.number)')].filter(e => e.textContent.trim());
	const boxes = [...svg.querySelectorAll('.shape:not(.k-pods) rect, rect.box')];
	texts.forEach((t, i) => {
		if (!inside(rect(t), all)) list.push('cut: ' + t.textContent);
		const shape = t.closest('.shape');
		if (shape && !inside(rect(t), rect(shape.querySelector('rect')))) list.push('outside its box: ' + t.textContent);
		texts.slice(0, i).forEach(u => { if (over(rect(t), rect(u), 1.5)) list.push(t.textContent + ' over ' + u.textContent) });
		if (!shape) boxes.forEach(b => { if (over(rect(t), rect(b), 0) && !inside(rect(t), rect(b))) list.push('over a box: ' + t.textContent) });
		svg.querySelectorAll('line.wire').forEach(l => { const r = rect(l);
			if (over(rect(t), {left: r.left - 1, right: r.right + 1, top: r.top - 1, bottom: r.bottom + 1}, 1)) list.push('crossed: ' + t.textContent) });
	});
	boxes.forEach((a, i) => boxes.slice(0, i).forEach(b => { if (over(rect(a), rect(b), 1)) list.push('box over box') }));
	return list.join('; ');
})`

// TestUIPictures checks in the browser that nothing in the pictures covers anything else: those of
// nodes in each gateway mode, with each Service engine and with long names, and of paths.
func TestUIPictures(t *testing.T) {
	b := tab{t, browser(t)}
	b.do("wide", chromedp.EmulateViewport(1280, 900))
	files, err := filepath.Glob("../examples/demo/*.yaml")
	noError(t, err)
	const long = "ip-10-0-128-213.eu-central-1.compute.internal"
	for name, change := range map[string]*strings.Replacer{
		"openflow": strings.NewReplacer(),
		"ovn":      strings.NewReplacer(`"service-engine":"openflow"`, `"service-engine":"ovn"`),
		"local":    strings.NewReplacer(`"mode":"shared"`, `"mode":"local"`),
		"long":     strings.NewReplacer("node-a", long),
	} {
		dir := t.TempDir()
		for _, file := range files {
			text, err := os.ReadFile(file)
			noError(t, err)
			noError(t, os.WriteFile(filepath.Join(dir, filepath.Base(file)), []byte(change.Replace(string(text))),
				0o644))
		}
		o := ui.Options{}
		o.Dir = dir
		base := uitest.Serve(t, o, config.DefaultConfig())
		node := "node-a"
		if name == "long" {
			node = long
		}
		b.do(name, chromedp.Navigate(base+"/node/"+node), chromedp.WaitVisible("svg.topology"))
		if got := b.value(overlaps + `("svg.topology")`); got != "" {
			t.Errorf("%s, node: %s", name, got)
		}
		text := b.text("svg.topology")
		for _, want := range []string{"br-tun", "br-ex", "transit_switch"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the picture of the node has no %s", name, want)
			}
		}
		if strings.Contains(text, "br-svc") == (name == "ovn") {
			t.Errorf("%s: br-svc is shown for the wrong engine: %s", name, text)
		}
		b.keep("node-" + name)
		b.do(name, chromedp.Navigate(base+"/walk?from=outside&to=svc/default/podremote&via="+node),
			chromedp.WaitVisible(".picture svg"))
		if got := b.value(overlaps + `(".picture svg")`); got != "" {
			t.Errorf("%s, path: %s", name, got)
		}
		b.keep("path-" + name)
	}
}

// TestUIBrowser selects a source and a Service in the picture of a node, and checks the packet's
// path: in light and dark, with mouse and keyboard, on a wide screen and on a narrow one.
func TestUIBrowser(t *testing.T) {
	base := demoUI(t)
	b := tab{t, browser(t)}
	for _, scheme := range []string{"light", "dark"} {
		b.do("wide", chromedp.EmulateViewport(1280, 900))
		b.scheme(scheme)
		b.do("nodes", chromedp.Navigate(base+"/"), chromedp.WaitVisible("table a"))
		if got := b.text("#health"); !strings.Contains(got, "3 nodes in manifests") {
			t.Errorf("%s: health of manifests: %s", scheme, got)
		}
		b.keep("cluster-" + scheme)
		for _, x := range [][2]string{{"/services", "default/web"}, {"/egress", "EgressIP"}, {"/policies", "policy"},
			{"/problems", "problem"}} {
			b.do(x[0], chromedp.Click(`nav a[href="`+x[0]+`"]`),
				chromedp.WaitVisible(`nav a[href="`+x[0]+`"][aria-current]`))
			if got := b.text("main"); !strings.Contains(got, x[1]) {
				t.Errorf("%s: %s has no %q: %s", scheme, x[0], x[1], got)
			}
			b.keep(strings.Trim(x[0], "/") + "-" + scheme)
		}
		b.do("home", chromedp.Click("a.brand"), chromedp.WaitVisible("#health"))
		b.do("node-a", chromedp.Click(`a[href="/node/node-a"]`), chromedp.WaitVisible("svg.topology"))
		for _, want := range []string{"GR_node-a", "ovn_cluster_router", "br-svc", "svc-host", "ext-svc", "br-tun",
			"transit_switch", "br-ex", "172.18.0.3/16",
			"pod-a1", "eth0", "ovn-k8s-mp0"} {
			if got := b.text("svg.topology"); !strings.Contains(got, want) {
				t.Errorf("%s: the picture of the node has no %s: %s", scheme, want, got)
			}
		}
		b.keep("node-" + scheme)
		b.do("source", chromedp.Click(`svg.topology a[href="/node/node-a?from=host/node-a"]`),
			chromedp.WaitVisible(`svg.topology a[aria-current]`))
		if got := b.text(".choose"); !strings.Contains(got, "Source host/node-a") {
			t.Errorf("%s: chosen: %s", scheme, got)
		}
		b.keep("chosen-" + scheme)
		b.do("service", chromedp.Click(`a[href="/walk?from=host/node-a&to=svc/default/hostself:tcp"]`),
			chromedp.WaitVisible("#verdict"))
		if got := b.text("#verdict"); !strings.Contains(got,
			"Delivered to host node-a port 8081, which sees 169.254.169.1:32768; the reply comes from 10.96.1.3:80") {
			t.Errorf("%s: %s", scheme, got)
		}
		for _, want := range []string{"br-svc", "host",
			"conntrack zone 64003: destination 10.96.1.3:80 becomes 172.18.0.3:8081"} {
			if got := b.text(".picture svg"); !strings.Contains(got, want) {
				t.Errorf("%s: the picture of the way has no %q: %s", scheme, want, got)
			}
		}
		for _, want := range []string{"SNAT", "actions=ct(commit,zone=64004,nat(src=169.254.169.1)",
			"Service/default/hostself", "node-a sees 2 connections, which are parts of one"} {
			if got := b.text("main"); !strings.Contains(got, want) {
				t.Errorf("%s: the page of the way has no %q", scheme, want)
			}
		}
		b.keep("walk-" + scheme)
		for _, selector := range []string{"main h1", "main h2", "#verdict", ".rule", ".change", ".entry", ".why",
			"header a", "button", ".facts dt", ".picture text:not(.number)", "th", "td"} {
			if got := b.number(contrast + `("` + selector + `")`); got < 4.5 {
				t.Errorf("%s: %s has a contrast of %.2f only", scheme, selector, got)
			}
		}
	}
	b.do("narrow", chromedp.EmulateViewport(390, 844))
	for _, path := range []string{"/", "/node/node-a", "/walk?from=host/node-a&to=svc/default/web"} {
		b.do(path, chromedp.Navigate(base+path), chromedp.WaitVisible("main"))
		if over := b.number("document.documentElement.scrollWidth - document.documentElement.clientWidth"); over > 0 {
			t.Errorf("%s is %.0f pixels too wide for a telephone", path, over)
		}
		b.keep("narrow" + strings.NewReplacer("/", "-", "?", "-").Replace(path[:min(6, len(path))]))
	}
	b.keyboard(base)
}

// keyboard fills in the form without a mouse.
func (b tab) keyboard(base string) {
	b.do("form", chromedp.EmulateViewport(1280, 900), chromedp.Navigate(base+"/walk"), chromedp.WaitVisible("form.ask"))
	b.do("source", chromedp.Focus(`select[name="from"]`), chromedp.KeyEvent("outside"), chromedp.KeyEvent(kb.Tab))
	b.do("Service", chromedp.KeyEvent("svc/default/podremote:udp"), chromedp.KeyEvent(kb.Tab),
		chromedp.KeyEvent("IPv6"), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter))
	b.do("answer", chromedp.WaitVisible("#verdict"))
	if at, err := chromedp.Run(b.ctx, chromedp.Location()); err != nil || at != base+
		"/walk?from=outside&to=svc/default/podremote:udp&family=6" {
		b.t.Errorf("at %s, %v", at, err)
	}
	if got := b.text("#verdict"); !strings.Contains(got, "Delivered to pod default/pod-c1 port 8080") {
		b.t.Error(got)
	}
}
