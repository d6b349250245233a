package controller

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"hairpin/kube"
	"hairpin/kubeapi"
	"hairpin/retry"
)

// lease is the Lease that elects the active controller. It has the semantics of client-go's leader
// election. That package is not used because it imports the clients and informers of all API
// groups: 307 packages, beside the 634 of this program.
type lease struct {
	api      kubeapi.Resource[*coordinationv1.Lease, *coordinationv1.LeaseList]
	identity string
	log      *slog.Logger

	last    *coordinationv1.Lease // as last read or written
	since   time.Time             // when this spec was first observed: clocks of other machines do not count
	renewed time.Time             // when the last write that succeeded was sent
	logged  string                // the last error that was logged
	unknown bool                  // the last write got no response: it may have been done
}

// acquire waits until this controller holds the Lease. It returns false if ctx ends first.
func (l *lease) acquire(ctx context.Context) bool {
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, kube.RenewDeadline)
		held := l.try(limited)
		cancel()
		if held {
			return true
		}
		retry.Sleep(ctx, wait.Jitter(kube.RenewPeriod, acquireJitter))
	}
	return false
}

// acquireJitter limits how much longer than kube.RenewPeriod a candidate waits, as in client-go:
// candidates that were started together do not write at the same moment each time.
const acquireJitter = 1.2

// keep renews the Lease. It returns when ctx ends, or when another controller may soon take the
// Lease.
func (l *lease) keep(ctx context.Context) {
	for {
		limited, cancel := context.WithDeadline(ctx, l.renewed.Add(kube.RenewDeadline))
		retry.Sleep(limited, kube.RenewPeriod)
		held := l.try(limited) || holder(l.last) == l.identity // not renewed: held until the deadline
		ended := limited.Err() != nil
		cancel()
		if ended || !held {
			return
		}
	}
}

// release releases the Lease if this controller still holds it: the next holder need not wait until
// it expires.
func (l *lease) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, kube.RenewDeadline)
	defer cancel()
	var err error
	for err == nil && (l.unknown || holder(l.last) == l.identity) {
		if l.unknown {
			err = l.read(ctx)
			continue
		}
		free := l.last.DeepCopy()
		free.Spec.HolderIdentity, free.Spec.LeaseDurationSeconds = new(""), new(int32(1))
		free, err = l.api.Update(ctx, free)
		switch {
		case err == nil:
			l.observe(free)
		case apierrors.IsConflict(err): // the last renewal may have timed out here and succeeded on the server
			l.unknown, err = true, nil
		}
	}
	if err != nil {
		l.log.Warn("release the Lease", "error", err)
	}
}

// try acquires or renews the Lease, and reports whether this controller holds it now.
func (l *lease) try(ctx context.Context) bool {
	now := time.Now()
	held, err := l.write(ctx, now)
	if err != nil && ctx.Err() == nil && err.Error() != l.logged {
		l.log.Warn("acquire or renew the Lease", "error", err)
		l.logged = err.Error()
	}
	if held {
		l.renewed, l.logged = now, ""
	}
	return held
}

// write writes the Lease, unless another controller holds it.
func (l *lease) write(ctx context.Context, now time.Time) (bool, error) {
	if holder(l.last) != l.identity { // otherwise nothing else writes it
		if err := l.read(ctx); err != nil {
			return false, err
		}
		if h := holder(l.last); h != "" && h != l.identity && now.Sub(l.since) < duration(l.last) {
			return false, nil
		}
	}
	next := l.last.DeepCopy()
	if holder(next) != l.identity {
		next.Spec.AcquireTime = &metav1.MicroTime{Time: now}
		if next.Spec.LeaseTransitions == nil {
			next.Spec.LeaseTransitions = new(int32)
		} else {
			*next.Spec.LeaseTransitions++
		}
	}
	next.Spec.HolderIdentity, next.Spec.RenewTime = &l.identity, &metav1.MicroTime{Time: now}
	next.Spec.LeaseDurationSeconds = new(int32(kube.LeaseDuration / time.Second))
	var err error
	if next.ResourceVersion == "" {
		next, err = l.api.Create(ctx, next)
	} else {
		next, err = l.api.Update(ctx, next)
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
		return false, l.read(ctx)
	case err != nil:
		l.unknown = true
		return false, fmt.Errorf("write: %w", err)
	}
	l.observe(next)
	return true, nil
}

// read reads the Lease. A Lease that does not exist counts as one without a holder.
func (l *lease) read(ctx context.Context) error {
	have, err := l.api.Get(ctx, kube.LeaseName)
	switch {
	case apierrors.IsNotFound(err):
		have = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: kube.LeaseNamespace,
			Name: kube.LeaseName}}
	case err != nil:
		return fmt.Errorf("read: %w", err)
	}
	l.observe(have)
	return nil
}

// observe records the Lease and when its spec last changed. It uses the time of the response: the
// holder may have renewed the Lease after the request was sent.
func (l *lease) observe(have *coordinationv1.Lease) {
	if l.last == nil || !reflect.DeepEqual(have.Spec, l.last.Spec) {
		l.since = time.Now()
	}
	l.last, l.unknown = have, false
}

// holder returns the holder of a Lease, also of an expired one, or "" if it has none or is nil.
func holder(l *coordinationv1.Lease) string {
	if l == nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// duration returns the time after the last renewal at which a Lease expires.
func duration(l *coordinationv1.Lease) time.Duration {
	if l.Spec.LeaseDurationSeconds == nil {
		return kube.LeaseDuration
	}
	return time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
}
