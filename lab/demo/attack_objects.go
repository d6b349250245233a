package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// put creates an object of a manifest, its status included, as somebody who may create such
// objects. What it returns removes the object again. Agents need a moment: an attack that makes
// objects makes an honest one last, and waits until that works.
func (w *world) put(ctx context.Context, manifest string) (remove func() error, err error) {
	o, err := parseObject(manifest)
	if err != nil {
		return nil, err
	}
	return func() error { return w.objects.remove(context.WithoutCancel(ctx), o) }, w.objects.create(ctx, o)
}

// until waits for a condition; its error says why it does not hold.
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

// tick waits until what is made next is younger than what was made before: the API counts seconds.
func (w *world) tick(ctx context.Context) error {
	before := time.Now().Unix()
	return w.until(ctx, "another second", func() error {
		if time.Now().Unix() == before {
			return errors.New("it is still the same")
		}
		return nil
	})
}

// putAll puts several objects, in their order, and removes them in reverse.
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
