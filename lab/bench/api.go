package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"

	"hairpin/image"
	"hairpin/lab"
)

// grow starts the API server with count Services, each with two endpoints that no client uses. It
// keeps the content of the API for later runs, because 10 000 Services take minutes to create. For
// each new cluster IP, the API server counts all allocated ones, for a metric.
func (w *world) grow(ctx context.Context, count int) error {
	kept := filepath.Join(image.DefaultDir, "bench", fmt.Sprintf("%s-%d", filepath.Base(w.api.Binary), count))
	if _, err := os.Stat(kept); err == nil {
		if err := w.stopAPI(); err != nil {
			return err
		}
		if err := replaceDir(w.api.Dir, kept); err != nil {
			return fmt.Errorf("take up the API of an earlier run: %w", err)
		}
		w.made = count
		return w.startAPI(ctx)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if w.runs == nil {
		if err := w.startAPI(ctx); err != nil {
			return err
		}
		if err := w.makeNodes(ctx); err != nil {
			return err
		}
	}
	begin, first := time.Now(), w.made
	dead := []string{"10.244.1.250", "10.244.2.250"}
	if err := parallel(ctx, first, count,
		func(ctx context.Context, i int) error { return w.makeService(ctx, i, inside, dead) }); err != nil {
		return err
	}
	w.made = count
	w.say("the API has %d Services; the last %d took %.1f s", count, count-first, time.Since(begin).Seconds())
	if err := w.stopAPI(); err != nil {
		return err
	}
	if err := replaceDir(kept, w.api.Dir); err != nil {
		return fmt.Errorf("keep the API for later runs: %w", err)
	}
	return w.startAPI(ctx)
}

// replaceDir replaces a directory with a copy of another one, completely or not at all.
func replaceDir(to, from string) error {
	part := to + ".part"
	if err := errors.Join(os.RemoveAll(part), os.MkdirAll(filepath.Dir(to), 0o700)); err != nil {
		return err
	}
	if err := os.CopyFS(part, os.DirFS(from)); err != nil {
		return err
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.Rename(part, to)
}

func (w *world) startAPI(ctx context.Context) error {
	var err error
	if w.runs, err = lab.StartAPIServer(ctx, w.api); err != nil {
		return err
	}
	config, err := w.runs.RESTConfig()
	if err != nil {
		return err
	}
	if w.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	w.slices = map[int]*slice{}
	begin := time.Now()
	if err := w.settle(ctx); err != nil {
		return err
	}
	w.say("the API server is ready, with %d Services; its controllers had work for %.0f s", w.made,
		time.Since(begin).Seconds())
	return nil
}

// settle waits until the control plane is idle. At its start, its controllers process each Service
// and slice with all CPUs, which would disturb a measurement.
func (w *world) settle(ctx context.Context) error {
	const look = time.Second
	rests := 150 * time.Millisecond * time.Duration(w.opt.Slow) // CPU time during look
	ctx, cancel := context.WithTimeout(ctx, w.patience(3*time.Minute))
	defer cancel()
	before, err := w.runs.Used()
	for err == nil {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the API server's controllers: %w", ctx.Err())
		case <-time.After(look):
		}
		var now lab.Usage
		if now, err = w.runs.Used(); now.CPU-before.CPU < rests && err == nil {
			return nil
		}
		before = now
	}
	return err
}

func (w *world) stopAPI() error {
	if w.runs == nil {
		return nil
	}
	defer func() { w.runs = nil }()
	return w.runs.Stop()
}
