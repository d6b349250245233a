package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// put creates an object from a manifest, with its status, as a user who may create it. remove
// deletes it again. Agents react with a delay, so an attack creates a legitimate object last and
// waits until that one works.
func (w *world) put(ctx context.Context, manifest string) (remove func() error, err error) {
	o, err := parseObject(manifest)
	if err != nil {
		return nil, err
	}
	return func() error { return w.objects.remove(context.WithoutCancel(ctx), o) }, w.objects.create(ctx, o)
}

// until waits until holds returns nil. Its error wraps the last reason why it did not.
func (w *world) until(ctx context.Context, what string, holds func() error) error {
	ctx, cancel := context.WithTimeout(ctx, w.longer(20*time.Second))
	defer cancel()
	for {
		err := holds()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// tick waits for the next second, because creation timestamps have a resolution of one second.
func (w *world) tick(ctx context.Context) error {
	before := time.Now().Unix()
	return w.until(ctx, "another second", func() error {
		if time.Now().Unix() == before {
			return errors.New("it is still the same")
		}
		return nil
	})
}

// putAll creates several objects, in order. remove deletes them in reverse.
func (w *world) putAll(ctx context.Context, manifests ...string) (remove func() error, err error) {
	var undo []func() error
	remove = func() error {
		var errs []error
		for _, u := range slices.Backward(undo) {
			errs = append(errs, u())
		}
		undo = nil
		return errors.Join(errs...)
	}
	for _, m := range manifests {
		u, err := w.put(ctx, m)
		if err != nil {
			return nil, errors.Join(err, remove())
		}
		undo = append(undo, u)
	}
	return remove, nil
}
