package inspect

import "errors"

// limited is a writer that keeps up to most bytes and rejects more.
type limited struct {
	most int
	text []byte
}

var errTooLong = errors.New("the answer is too long")

func (l *limited) Write(b []byte) (int, error) {
	if len(l.text)+len(b) > l.most {
		return 0, errTooLong
	}
	l.text = append(l.text, b...)
	return len(b), nil
}
