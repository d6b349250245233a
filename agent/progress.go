package agent

import (
	"log/slog"
	"time"
)

// logAfter is how long an error must last before it is logged.
const logAfter = time.Second

// progress records the results of this agent's passes.
type progress struct {
	log          *slog.Logger
	err          error     // of the last pass
	failingSince time.Time // valid if err is not nil
	logged       string    // the error that was logged last
	synced       bool      // a pass has succeeded since the start
}

// record records the result of a pass. It logs a lasting error once.
func (p *progress) record(err error) {
	now := time.Now()
	switch {
	case err == nil:
		if p.logged != "" {
			p.log.Info("in sync again", "after", now.Sub(p.failingSince).Round(time.Millisecond))
		}
		if !p.synced {
			time.AfterFunc(settledAfter, trimHeap)
		}
		p.logged, p.synced = "", true
	default:
		if p.err == nil {
			p.failingSince = now
		}
		if text := err.Error(); now.Sub(p.failingSince) > logAfter && text != p.logged {
			p.log.Warn("not in sync", "error", err)
			p.logged = text
		}
	}
	p.err = err
}
