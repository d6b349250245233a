package agent

import (
	"log/slog"
	"time"
)

// patience is how long something may be out of order before it is worth a line in the log.
const patience = time.Second

// progress is how the passes of this agent ended.
type progress struct {
	log     *slog.Logger
	err     error     // of the last pass
	failing time.Time // since when err is not nil
	warned  string    // the err that the log has
	synced  bool      // everything was in order once
}

// note records how a pass ended. The log has an error that lasts once.
func (p *progress) note(err error) {
	now := time.Now()
	switch {
	case err == nil:
		if p.warned != "" {
			p.log.Info("in sync again", "after", now.Sub(p.failing).Round(time.Millisecond))
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
