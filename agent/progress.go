package agent

import (
	"log/slog"
	"time"
)

// patience is how long an error must last before it is logged.
const patience = time.Second

// progress records the results of this agent's passes.
type progress struct {
	log     *slog.Logger
	err     error     // of the last pass
	failing time.Time // since when err is not nil
	warned  string    // the error that was logged last
	synced  bool      // everything was in order once
}

// note records the result of a pass. It logs a lasting error once.
func (p *progress) note(err error) {
	now := time.Now()
	switch {
	case err == nil:
		if p.warned != "" {
			p.log.Info("in sync again", "after", now.Sub(p.failing).Round(time.Millisecond))
		}
		if !p.synced {
			time.AfterFunc(settledAfter, trimHeap)
		}
		p.warned, p.synced = "", true
	default:
		if p.err == nil {
			p.failing = now
		}
		if text := err.Error(); now.Sub(p.failing) > patience && text != p.warned {
			p.log.Warn("not in sync", "error", err)
			p.warned = text
		}
	}
	p.err = err
}
