package targets

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"hairpin/apply"
	"hairpin/apply/knft"
	"hairpin/apply/nbdb"
	"hairpin/retry"
)

// oldestOVS is the oldest supported Open vSwitch (docs/reference/compatibility.md). nbdb and knft
// have the oldest OVN and nft.
const oldestOVS = "3.5"

// Programs with a version.
const (
	ovn         = "OVN"
	openVSwitch = "Open vSwitch"
	nft         = "nft"
)

// Time limits for a program to report its version. They double at each try, because a machine may
// be very slow.
const (
	asking        = 5 * time.Second
	longestAsking = time.Minute
)

// versions has the errors of the programs that have not reported a version.
type versions struct {
	mu     sync.Mutex
	errors map[string]error // by program
	ovn    string           // empty: not known
}

// note records the answer of a program. It returns true for the first failure.
func (v *versions) note(program string, err error) (first bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err == nil {
		delete(v.errors, program)
		return false
	}
	if v.errors == nil {
		v.errors = map[string]error{}
	}
	_, failed := v.errors[program]
	v.errors[program] = err
	return !failed
}

// VersionError returns why CheckVersions still waits. It returns nil when all programs have
// answered, or when no try has failed yet.
func (t *Set) VersionError() error {
	t.asked.mu.Lock()
	defer t.asked.mu.Unlock()
	return errors.Join(t.asked.errors[ovn], t.asked.errors[openVSwitch], t.asked.errors[nft])
}

// OVNVersion returns the version of OVN that CheckVersions has found; empty before.
func (t *Set) OVNVersion() string {
	t.asked.mu.Lock()
	defer t.asked.mu.Unlock()
	return t.asked.ovn
}

// CheckVersions rejects an Open vSwitch, OVN or nft that is too old. The error has the version
// found and the one needed. CheckVersions retries until all programs have answered.
func (t *Set) CheckVersions(ctx context.Context, log *slog.Logger) error {
	g, ctx := errgroup.WithContext(ctx)
	require := func(program string, version func(context.Context) (string, error), check func(string) error) {
		g.Go(func() error {
			found, err := t.ask(ctx, log, program, version)
			if err != nil {
				return err
			}
			return check(found)
		})
	}
	require(ovn, t.NB.Version, func(v string) error {
		t.asked.mu.Lock()
		t.asked.ovn = v
		t.asked.mu.Unlock()
		return nbdb.CheckVersion(v)
	})
	require(openVSwitch, t.Bridge.Version,
		func(v string) error { return apply.NeedVersion(openVSwitch, v, oldestOVS) })
	require(nft, t.NFT.Version, knft.CheckVersion)
	return g.Wait()
}

// ask requests the version of a program until it answers or ctx ends.
func (t *Set) ask(ctx context.Context, log *slog.Logger, program string,
	version func(context.Context) (string, error)) (string, error) {
	p := retry.Backoff{}
	for patience := asking; ; patience = min(2*patience, longestAsking) {
		brief, cancel := context.WithTimeout(ctx, patience)
		found, err := version(brief)
		cancel()
		if first := t.asked.note(program, err); first && ctx.Err() == nil {
			log.Warn("the version is not known yet", "program", program, "error", err)
		}
		if err == nil {
			return found, nil
		}
		p.Sleep(ctx)
		if ctx.Err() != nil {
			return "", err
		}
	}
}
