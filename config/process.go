package config

import (
	"fmt"
	"io"
	"log/slog"
	"os"
)

// Logger returns a structured logger for the configured level and above.
func Logger(c Config, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Process.LogLevel)); err != nil {
		level = slog.LevelInfo // Option.Set accepts no other value
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// NodeName returns the configured name, or the host's.
func NodeName(c Config) (string, error) {
	if c.Process.Node != "" {
		return c.Process.Node, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("[default] node: not given, and %w", err)
	}
	return name, nil
}
