package probe

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"time"
)

// Session is a connection to a server of this package that stays open.
type Session struct {
	Greeting Greeting
	Last     time.Time // when the server last answered
	conn     net.Conn
}

// Open opens a session, as Get does with its connection.
func Open(ctx context.Context, r Request) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	conn, err := dial(ctx, r.Protocol, r.From, r.Port, r.To)
	if err != nil {
		return nil, err
	}
	greeting, err := ask(ctx, conn, r.Protocol)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &Session{Greeting: greeting, Last: time.Now(), conn: conn}, nil
}

// Echo sends a message on a TCP session and waits for its echo.
func (s *Session) Echo(timeout time.Duration) error {
	if err := s.conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	message := []byte("are you there?")
	if _, err := s.conn.Write(message); err != nil {
		return err
	}
	echo := make([]byte, len(message))
	if _, err := io.ReadFull(s.conn, echo); err != nil {
		return err
	}
	if !bytes.Equal(echo, message) {
		return fmt.Errorf("echo %q of %q", echo, message)
	}
	s.Last = time.Now()
	return nil
}

// Close closes the connection with a reset.
func (s *Session) Close() { _ = s.conn.Close() }
