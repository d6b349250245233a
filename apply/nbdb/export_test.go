package nbdb

import (
	"context"

	"hairpin/datapath/nb"
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
