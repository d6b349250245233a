package kube_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/kube"
)

// TestEvents: a problem is reported once it has lasted for Grace, and again only after it was
// gone.
func TestEvents(t *testing.T) {
	var log bytes.Buffer
	e := kube.NewEvents(nil, "test", slog.New(slog.NewTextHandler(&log, nil)))
	problem := func(name string) cluster.Problem {
		return cluster.Problem{Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: name}, Field: "spec",
			Message: "is odd"}
	}
	a, b := problem("a"), problem("b")
	begin := time.Now()
	for _, c := range []struct {
		name     string
		after    time.Duration
		problems []cluster.Problem
		again    time.Duration
		reported string
	}{
		{"none", 0, nil, 0, ""},
		{"one comes", 0, []cluster.Problem{a}, kube.Grace, ""},
		{"another comes", kube.Grace / 2, []cluster.Problem{a, b}, kube.Grace / 2, ""},
		{"the first has lasted", kube.Grace, []cluster.Problem{a, b}, kube.Grace / 2, "a"},
		{"the second has lasted", 2 * kube.Grace, []cluster.Problem{a, b}, 0, "b"},
		{"both are there still", 3 * kube.Grace, []cluster.Problem{a, b}, 0, ""},
		{"the first goes", 4 * kube.Grace, []cluster.Problem{b}, 0, ""},
		{"and comes back", 5 * kube.Grace, []cluster.Problem{a, b}, kube.Grace, ""},
		{"and goes too soon", 5*kube.Grace + 1, []cluster.Problem{b}, 0, ""},
		{"and comes back", 6*kube.Grace + 1, []cluster.Problem{a, b}, kube.Grace, ""},
		{"and stays", 8 * kube.Grace, []cluster.Problem{a, b}, 0, "a"},
		{"all go", 9 * kube.Grace, nil, 0, ""},
	} {
		log.Reset()
		if again := e.Report(begin.Add(c.after), c.problems); again != c.again {
			t.Errorf("%s: wants to be called after %s, not %s", c.name, again, c.again)
		}
		var reported string
		for _, line := range strings.Split(strings.TrimSpace(log.String()), "\n") {
			if _, rest, found := strings.Cut(line, "object=Service/default/"); found {
				reported += rest[:1]
			}
		}
		if reported != c.reported {
			t.Errorf("%s: reported %q, not %q:\n%s", c.name, reported, c.reported, log.String())
		}
	}
}
