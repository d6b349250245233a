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

// TestUIBrowser selects a source and a Service in the picture of a node, and checks the packet's
// path: in light and dark, with mouse and keyboard, on a wide screen and on a narrow one.
func TestUIBrowser(t *testing.T) {
	base := demoUI(t)
	b := tab{t, browser(t)}
	for _, scheme := range []string{"light", "dark"} {
		b.do("wide", chromedp.EmulateViewport(1280, 900))
		b.scheme(scheme)
		b.do("nodes", chromedp.Navigate(base+"/"), chromedp.WaitVisible("table a"))
		b.keep("nodes-" + scheme)
		b.do("node-a", chromedp.Click(`a[href="/node/node-a"]`), chromedp.WaitVisible("svg.topology"))
		for _, want := range []string{"GR_node-a", "ovn_cluster_router", "transit_switch", "br-ex", "172.18.0.3/16",
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
