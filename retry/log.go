package retry

import "log/slog"

// LastError is the last error of work that is tried again and again. An error is logged once, until
// there is another one, or none.
type LastError struct{ text string }

// Warn records the result of a try, and logs its error if that is not the last one.
func (l *LastError) Warn(log *slog.Logger, what string, err error) {
	if err == nil {
		l.text = ""
		return
	}
	if text := err.Error(); text != l.text {
		l.text = text
		log.Warn(what, "error", err)
	}
}
