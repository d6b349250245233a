package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"hairpin/config"
	"hairpin/report"
)

// maxAnswer is the longest accepted answer of this node's agent, in bytes: ten times its whole
// state with 10 000 Services.
const maxAnswer = 512 << 20

// FromAgent requests path from the agent of this node.
func FromAgent(ctx context.Context, c config.Config, path string) ([]byte, error) {
	socket := filepath.Join(c.Process.RunDir, report.AgentSocket)
	client := socketClient(socket)
	client.Timeout = 30 * time.Second
	method := http.MethodGet
	if strings.HasPrefix(path, "/send") || strings.HasPrefix(path, "/watch") {
		method = http.MethodPost // these change state: the agent accepts no GET
	}
	q, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	answer, err := client.Do(q)
	if err != nil {
		return nil, requestError(socket, err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = errTooLong
	}
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the agent says: %s", strings.TrimSpace(string(body)))
	}
	return body, nil
}

// socketClient returns a client that connects to a unix socket, whatever host a URL has.
func socketClient(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
}

// requestError explains why the agent does not answer. It omits the placeholder address that HTTP
// requires.
func requestError(socket string, err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err
	}
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no agent answers on this node: nothing listens at %s (is `hairpin node` running?)", socket)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("ask the agent of this node: only root may use %s", socket)
	}
	return fmt.Errorf("ask the agent of this node at %s: %w", socket, err)
}

// suggestAll adds to an error of this node's agent how to ask all agents.
func suggestAll(err error) error {
	return fmt.Errorf("%w; --all asks every node through the Kubernetes API", err)
}
