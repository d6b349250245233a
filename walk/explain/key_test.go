package explain_test

import (
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/ui/demotest"
	"hairpin/walk/explain"
	"hairpin/walk/explain/question"
	"hairpin/walk/packet"
)

// TestKeySteps checks that the short form of every situation fits on a screen, has the step where
// the packet ends and every new address, and that the long form begins with the same lines.
func TestKeySteps(t *testing.T) {
	for _, engine := range []string{cluster.EngineOpenFlow, cluster.EngineOVN} {
		s := readWhy(t, engine, cluster.ModeShared)
		w := demotest.Planned(t, s)
		for _, c := range situations {
			e, err := explain.Ask(w, s, question.Question{From: c.from[0], To: c.to[0], Via: c.via,
				NodePort: c.nodePort})
			if err != nil {
				t.Fatal(err)
			}
			brief, long := e.Text(explain.Form{}), e.Text(explain.Form{All: true})
			if n := strings.Count(brief, "\n"); n > 40 {
				t.Errorf("%d lines:\n%s", n, brief)
			}
			head, _, _ := strings.Cut(brief, "\n\n")
			if !strings.HasPrefix(long, head+"\n\n") || !strings.HasSuffix(long, "\n"+e.Sentence()+"\n") {
				t.Errorf("the long form has another head or end than %q:\n%s", head, long)
			}
			hops, reply := e.ForwardHops(), []explain.Hop(nil)
			if reply, _ = e.ReplyHops(); len(hops) > 0 && !hops[len(hops)-1].Key {
				t.Errorf("the step where the packet ends is no key step:\n%s", brief)
			}
			for _, list := range [][]explain.Hop{hops, reply} {
				for i, h := range list {
					moves := i > 0 && (h.After.Src != list[i-1].After.Src || h.After.Dst != list[i-1].After.Dst)
					if moves && (!h.Key || !strings.Contains(brief, h.Stage)) {
						t.Errorf("the short form does not have the new address of %s\n%s", h.Stage, brief)
					}
				}
			}
			if lost := !e.Trace.Verdict.Delivered; lost && len(hops) >= 10 && strings.Count(brief, "node-") < 5 {
				t.Errorf("too few steps:\n%s", brief)
			}
			if strings.Contains(brief+long, "conntrack passes") ||
				e.Trace.Costs.First != (packet.Cost{}) &&
					!strings.Contains(e.Text(explain.Form{Costs: true}), "conntrack passes") {
				t.Errorf("costs are not what was asked for:\n%s", brief)
			}
		}
	}
}
