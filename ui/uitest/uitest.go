// Package uitest serves pages to tests.
package uitest

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"regexp"
	"testing"
	"time"

	"hairpin/config"
	"hairpin/ui"
)

// Serve starts the pages and returns their URL.
func Serve(t *testing.T, o ui.Options, c config.Config) string {
	t.Helper()
	o.Listen = "127.0.0.1:0"
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		err := ui.Serve(ctx, w, o, c)
		w.CloseWithError(err)
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(r).ReadString('\n')
	noError(t, err)
	m := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(line)
	if m == "" {
		t.Fatalf("says no address: %s", line)
	}
	return m
}

// Fetch sends a request like a browser, but follows no redirect.
func Fetch(t *testing.T, method, address, host string) (int, string, http.Header) {
	t.Helper()
	client := http.Client{Timeout: time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	q, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	noError(t, err)
	if host != "" {
		q.Host = host
	}
	a, err := client.Do(q)
	noError(t, err)
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	noError(t, err)
	return a.StatusCode, string(body), a.Header
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
