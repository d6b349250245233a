package quickstart

import (
	"strings"
	"testing"
)

// TestPages checks that each command of a quick start is played or has a reason, and that each rule
// is of use.
func TestPages(t *testing.T) {
	used := map[string]bool{}
	played := map[string]int{}
	for _, page := range Pages {
		steps, err := Read("../..", page)
		if err != nil {
			t.Error(err)
		}
		installs := 0
		for _, s := range steps {
			for _, r := range rules {
				if s.Command != "" && strings.HasPrefix(s.Command+" ", r.command) {
					used[r.command] = true
				}
			}
			switch {
			case s.File != "":
				t.Logf("%s: file %s", page, s.File)
				continue
			case s.Where == Nowhere && s.Reason == "":
				t.Errorf("%s: %s is not played, without a reason", page, s.Command)
			case s.Where == Nowhere:
				t.Logf("%s: not played: %s (%s)", page, s.Command, s.Reason)
			default:
				t.Logf("%s: played: %s", page, s.Command)
				played[page]++
			}
			if strings.HasPrefix(s.Command, "helm install ") {
				installs++
			}
		}
		if installs != 1 {
			t.Errorf("%s: %d commands install the chart", page, installs)
		}
	}
	for _, r := range rules {
		if !used[r.command] {
			t.Errorf("no page has a command %q", r.command)
		}
	}
	if played["kubeadm"] < 6 || played["edge"] < 7 || played["k3s"]+played["kind"] > 0 {
		t.Errorf("played commands by page: %v", played)
	}
}

// TestRead checks files, continued lines, comments and sessions.
func TestRead(t *testing.T) {
	steps, err := Read("../..", "edge")
	if err != nil {
		t.Fatal(err)
	}
	var values, bridge bool
	for _, s := range steps {
		values = values || s.File == "values.yaml" &&
			strings.Contains(s.Content, "\nconfig:\n  gateway:\n    mode: detached\n")
		bridge = bridge || s.Command == "ip -brief address show dev br-ex" &&
			s.Comment == "10.44.0.0/32 fd00:10:44::/128"
	}
	if !values || !bridge {
		t.Errorf("%+v", steps)
	}
	if _, err := step("kubeadm", "rm -rf /"); err == nil {
		t.Error("a command without a rule is accepted")
	}
	if steps, err = Read("../..", "kubeadm"); err != nil || !strings.HasSuffix(steps[0].Command, "/112") {
		t.Errorf("%v, %+v", err, steps)
	}
}
