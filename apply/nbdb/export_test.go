package nbdb

import (
	"context"

	"hairpin/datapath/nb"
	"hairpin/ovsdb"
)

// ReadAll gives all rows that nb has a type for, whoever made them.
func (t *Target) ReadAll(ctx context.Context) (nb.State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.refresh(ctx); err != nil {
		return nil, err
	}
	s := nb.State{}
	for _, it := range t.model.items {
		s[it.key] = it.row
	}
	return s, nil
}

// Remodel builds the model from nothing, as the first Read does.
func (t *Target) Remodel() int {
	m := newModel()
	m.update(t.nb.View(), t.sb.View())
	return len(m.state)
}

// Raw makes the operations of a difference, and gives them without carrying them out.
func (t *Target) Raw(d nb.Delta) ([]ovsdb.Op, *ovsdb.Client) {
	_, rows, _ := order(d)
	ops, _ := newCompiler(t.model, rows).compile()
	return ops, t.nb
}
