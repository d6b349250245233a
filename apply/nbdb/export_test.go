package nbdb

import (
	"context"

	"hairpin/datapath/nb"
	"hairpin/ovsdb"
)

// NorthdTime is northdTime.
const NorthdTime = northdTime

// ReadAll returns all rows that nb has a type for, also foreign ones.
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

// Remodel builds the model from scratch, as the first Read does.
func (t *Target) Remodel() int {
	m := newModel()
	m.update(t.nb.View(), t.sb.View())
	return len(m.state)
}

// Raw returns the operations of a difference without executing them.
func (t *Target) Raw(d nb.Delta) ([]ovsdb.Op, *ovsdb.Client) {
	_, rows, _ := order(d)
	ops, _ := newCompiler(t.model, rows).compile()
	return ops, t.nb
}
