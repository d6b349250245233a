package ui_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"hairpin/config"
	"hairpin/ui"
	"hairpin/ui/uitest"
)

// TestUIPolicies checks the page of a pod, and the decisions of policies on the page of a walk.
func TestUIPolicies(t *testing.T) {
	story, err := txtar.ParseFile("../plan/testdata/network-policies.txtar")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	objects := append(story.Files[0].Data,
		"---\n{apiVersion: policy.networking.k8s.io/v1beta1, kind: ClusterNetworkPolicy, "+
			"metadata: {name: guard}, spec: {tier: Admin, priority: 7, subject: {namespaces: {}}, "+
			"egress: [{action: Deny, "+
			"to: [{nodes: {}}]}]}}\n"...)
	if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), objects, 0o644); err != nil {
		t.Fatal(err)
	}
	o := ui.Options{}
	o.Dir = dir
	base := uitest.Serve(t, o, config.DefaultConfig())
	for _, c := range []struct {
		path   string
		status int
		want   []string
	}{
		{"/walk?from=pod/shop/other&to=svc/shop/db", 200, []string{
			`<strong class="bad">pod/shop/db: ingress dropped: no rule accepts the packet; the pod is isolated by ` +
				`NetworkPolicy/shop/db</strong> <a href="/pod/shop/db">`,
			"<li>NetworkPolicy/shop/db rule 1: the port matches, the peer does not: label app is &#34;other&#34;, not " +
				"&#34;api&#34;</li>",
		}},
		{"/walk?from=pod/shop/api&to=svc/shop/db", 200, []string{
			`<strong class="ok">pod/shop/api: egress accepted by NetworkPolicy/shop/api rule 1</strong>`,
		}},
		{"/pod/shop/db", 200, []string{
			`Ingress <span class="mark">isolated</span>`, `Egress <span class="mark">not isolated</span>`,
			"<div>pods with app=api in namespace shop</div></td><td>1 pod, 0 ranges</td><td><div>sql/TCP (5432)</div>",
			`href="/node/ovn-worker"`, "ClusterNetworkPolicy/guard (tier Admin, priority 7)",
			"<strong>deny</strong> <div>all nodes</div></td><td>0 pods, 2 ranges</td>",
		}},
		{"/pod/shop/other", 200, []string{"No policy selects the pod in this direction."}},
		{"/pod/shop/none", 404, []string{"There is no Pod"}},
		{"/pod/shop/none/policies.json", 404, []string{"There is no Pod"}},
		{"/pod/shop/db/policies.json", 200, []string{`"pod": "shop/db"`, `"policy": "NetworkPolicy/shop/db"`}},
		{"/pod/shop/db", 200, []string{"hairpin policies -f " + dir + " shop/db</span>",
			`href="/pod/shop/db/policies.json" download`}},
		{"/node/ovn-worker", 200, []string{`href="/pod/shop/db">policies</a>`}},
	} {
		status, body, header := uitest.Fetch(t, "GET", base+c.path, "")
		if status == 303 {
			status, body, _ = uitest.Fetch(t, "GET", base+header.Get("Location"), "")
		}
		if status != c.status {
			t.Errorf("%s: status %d", c.path, status)
		}
		for _, want := range c.want {
			if !strings.Contains(body, want) {
				t.Errorf("%s does not have %q:\n%s", c.path, want, body)
			}
		}
	}
}
