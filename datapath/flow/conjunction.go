package flow

import (
	"cmp"
	"fmt"
	"strings"
)

func parseConjunction(word, s string) (Action, error) {
	id, place, _ := strings.Cut(s, ",")
	clause, of, _ := strings.Cut(place, "/")
	var c Conjunction
	err := cmp.Or(number(&c.ID, word, id, 32), number(&c.Clause, word, clause, 8), number(&c.Of, word, of, 8))
	return c, err
}

// MaxConjunctions limits the Conjunctions of a flow: 4 090 do not fit in one message, and each
// costs time when a packet matches the flow.
const MaxConjunctions = 2000

func (f *Flow) checkConjunctions() error {
	switch {
	case len(f.Actions) > MaxConjunctions:
		return fmt.Errorf("%d conjunctions are more than %d", len(f.Actions), MaxConjunctions)
	case f.Match.ConjID != 0:
		return fmt.Errorf("a flow that matches a conj_id is a clause of another conjunction")
	}
	ids := make(map[uint32]bool, len(f.Actions))
	for _, x := range f.Actions {
		c, ok := x.(Conjunction)
		switch {
		case !ok:
			return fmt.Errorf("conjunctions stand beside another action")
		case c.ID == 0 || c.Of < 2 || c.Clause == 0 || c.Clause > c.Of:
			return fmt.Errorf("conjunction %d has no clause %d of %d", c.ID, c.Clause, c.Of)
		case ids[c.ID]:
			return fmt.Errorf("the flow is in two clauses of conjunction %d", c.ID)
		}
		ids[c.ID] = true
	}
	return nil
}
