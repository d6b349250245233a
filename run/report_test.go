package run_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/run"
)

// TestReporter: a problem is told once it has lasted for the grace time, and again only after it was gone.
func TestReporter(t *testing.T) {
	var log bytes.Buffer
	r := run.NewReporter(slog.New(slog.NewTextHandler(&log, nil)))
	problem := func(name string) cluster.Problem {
		return cluster.Problem{Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: name}, Field: "spec", Message: "is odd"}
	}
	a, b := problem("a"), problem("b")
	begin := time.Now()
	for _, c := range []struct {
		name     string
		after    time.Duration
		problems []cluster.Problem
		again    time.Duration
		told     string
	}{
		{"none", 0, nil, 0, ""},
		{"one comes", 0, []cluster.Problem{a}, run.Grace, ""},
		{"another comes", run.Grace / 2, []cluster.Problem{a, b}, run.Grace / 2, ""},
		{"the first has lasted", run.Grace, []cluster.Problem{a, b}, run.Grace / 2, "a"},
		{"the second has lasted", 2 * run.Grace, []cluster.Problem{a, b}, 0, "b"},
		{"both are there still", 3 * run.Grace, []cluster.Problem{a, b}, 0, ""},
		{"the first goes", 4 * run.Grace, []cluster.Problem{b}, 0, ""},
		{"and comes back", 5 * run.Grace, []cluster.Problem{a, b}, run.Grace, ""},
		{"and goes too soon", 5*run.Grace + 1, []cluster.Problem{b}, 0, ""},
		{"and comes back", 6*run.Grace + 1, []cluster.Problem{a, b}, run.Grace, ""},
		{"and stays", 8 * run.Grace, []cluster.Problem{a, b}, 0, "a"},
		{"all go", 9 * run.Grace, nil, 0, ""},
	} {
		log.Reset()
		if again := r.At(begin.Add(c.after), c.problems...); again != c.again {
			t.Errorf("%s: wants to be called after %s, not %s", c.name, again, c.again)
		}
		var told string
		for _, line := range strings.Split(strings.TrimSpace(log.String()), "\n") {
			if _, rest, found := strings.Cut(line, "object=Service/default/"); found {
				told += rest[:1]
			}
		}
		if told != c.told {
			t.Errorf("%s: told %q, not %q:\n%s", c.name, told, c.told, log.String())
		}
	}
}
