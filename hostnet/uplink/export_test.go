package uplink

import (
	"context"

	"hairpin/ovsdb"
)

// AdoptStep exports adoptStep.
func AdoptStep(ctx context.Context, db *ovsdb.Client, c Config) (string, error) {
	return adoptStep(ctx, db, c)
}

// GiveBackStep exports giveBackStep.
func GiveBackStep(ctx context.Context, db *ovsdb.Client, c Config) (string, error) {
	return giveBackStep(ctx, db, c, false)
}
