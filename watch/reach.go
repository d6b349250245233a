package watch

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// reach knows whether the API server answers, by resource, and tells when that changes.
type reach struct {
	log   logr.Logger
	mu    sync.Mutex
	fails map[string]bool
}

// heard notes how the server answered. A watch that cannot go on where it was ended, and a call that we ended
// ourselves, say nothing about the server.
func (r *reach) heard(ctx context.Context, resource string, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.fails)
	if err == nil {
		delete(r.fails, resource)
	} else {
		if r.fails == nil {
			r.fails = map[string]bool{}
		}
		r.fails[resource] = true
	}
	switch {
	case before == 0 && err != nil:
		r.log.Error(err, "Kubernetes API does not answer: what is known stays", "resource", resource)
	case before > 0 && len(r.fails) == 0:
		r.log.Info("Kubernetes API answers again")
	}
}

// asker lists and watches one resource and notes how that went.
type asker struct {
	*cache.ListWatch
	resource string
	reach    *reach
}

// ListWithContext reads all objects.
func (a *asker) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list, err := a.ListWatch.ListWithContext(ctx, options)
	a.reach.heard(ctx, a.resource, err)
	return list, err
}

// WatchWithContext reads changes.
func (a *asker) WatchWithContext(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	w, err := a.ListWatch.WatchWithContext(ctx, options)
	a.reach.heard(ctx, a.resource, err)
	return w, err
}
