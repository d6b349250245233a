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

// lease is the Lease by which controllers agree on who of them works. It means what client-go's
// leader election means by it. That is not used because it imports the clients and informers of all
// API groups: 307 packages, beside the 634 of this program.
type lease struct {
	api      kubeapi.Resource[*coordinationv1.Lease, *coordinationv1.LeaseList]
	identity string
	log      *slog.Logger

	last    *coordinationv1.Lease // as last read or written
	since   time.Time             // when it was first seen to be so: other machines' clocks do not count
	renewed time.Time             // when the last write that succeeded was sent
	told    string                // the error that the log has
}

// acquire waits until the Lease is this controller's. It reports false when ctx ends before.
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

// acquireJitter is how much longer than kube.RenewPeriod a candidate waits at most, as with
// client-go: candidates that were started together do not write at the same moment each time.
const acquireJitter = 1.2

// keep renews the Lease, and returns when ctx ends, or when it may soon be another's.
func (l *lease) keep(ctx context.Context) {
	for {
		limited, cancel := context.WithDeadline(ctx, l.renewed.Add(kube.RenewDeadline))
		retry.Sleep(limited, kube.RenewPeriod)
		held := l.try(limited) || holder(l.last) == l.identity
		ended := limited.Err() != nil
		cancel()
		if ended || !held {
			return
		}
	}
}

// release gives the Lease back, if it is still this controller's: the next one need not wait until
// it expires.
func (l *lease) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, kube.RenewDeadline)
	defer cancel()
	for holder(l.last) == l.identity {
		free := l.last.DeepCopy()
		free.Spec.HolderIdentity, free.Spec.LeaseDurationSeconds = new(""), new(int32(1))
		_, err := l.api.Update(ctx, free)
		if apierrors.IsConflict(err) { // the last renewal may have been given up here, and done there
			if err = l.read(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			l.log.Warn("give the Lease back", "error", err)
		}
		return
	}
}

// try takes the Lease, if it is free or expired, or renews it. It reports whether it did.
func (l *lease) try(ctx context.Context) bool {
	now := time.Now()
	held, err := l.write(ctx, now)
	if err != nil && ctx.Err() == nil && err.Error() != l.told {
		l.log.Warn("the controllers' Lease", "error", err)
		l.told = err.Error()
	}
	if held {
		l.renewed, l.told = now, ""
	}
	return held
}

// write writes the Lease, unless another has it.
func (l *lease) write(ctx context.Context, now time.Time) (bool, error) {
	if holder(l.last) != l.identity { // else nobody but this controller should have written it
		if err := l.read(ctx); err != nil {
			return false, err
		}
		if h := holder(l.last); h != "" && h != l.identity && now.Sub(l.since) < duration(l.last) {
			return false, nil
		}
	}
	mine := l.last.DeepCopy()
	if holder(mine) != l.identity {
		mine.Spec.AcquireTime = &metav1.MicroTime{Time: now}
		if mine.Spec.LeaseTransitions == nil {
			mine.Spec.LeaseTransitions = new(int32)
		} else {
			*mine.Spec.LeaseTransitions++
		}
	}
	mine.Spec.HolderIdentity, mine.Spec.RenewTime = &l.identity, &metav1.MicroTime{Time: now}
	mine.Spec.LeaseDurationSeconds = new(int32(kube.LeaseDuration / time.Second))
	var err error
	if mine.ResourceVersion == "" {
		mine, err = l.api.Create(ctx, mine)
	} else {
		mine, err = l.api.Update(ctx, mine)
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
		return false, l.read(ctx)
	case err != nil:
		return false, fmt.Errorf("write: %w", err)
	}
	l.see(mine)
	return true, nil
}

// read reads the Lease. Where there is none it is one that nobody holds.
func (l *lease) read(ctx context.Context) error {
	have, err := l.api.Get(ctx, kube.LeaseName)
	switch {
	case apierrors.IsNotFound(err):
		have = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: kube.LeaseNamespace,
			Name: kube.LeaseName}}
	case err != nil:
		return fmt.Errorf("read: %w", err)
	}
	l.see(have)
	return nil
}

// see notes how the Lease is. The time is that of the answer: its holder may have renewed it after
// the question was sent.
func (l *lease) see(have *coordinationv1.Lease) {
	if l.last == nil || !reflect.DeepEqual(have.Spec, l.last.Spec) {
		l.since = time.Now()
	}
	l.last = have
}

// holder is who has a Lease, or had it when it expired; nobody has one that is not known.
func holder(l *coordinationv1.Lease) string {
	if l == nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// duration is how long after a sign of its holder a Lease expires.
func duration(l *coordinationv1.Lease) time.Duration {
	if l.Spec.LeaseDurationSeconds == nil {
		return kube.LeaseDuration
	}
	return time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
}
