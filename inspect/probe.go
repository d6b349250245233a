package inspect

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"time"

	"hairpin/config"
	"hairpin/report"
)

// probeTimeout is how long an agent or a controller may take to report its health: it does not wait
// for its main loop.
const probeTimeout = 5 * time.Second

// Probe prints the answer of the agent, or the controller, to a path of its socket: livez, readyz,
// healthz or metrics. A nil error means success. Probe is for exec probes: two processes in the
// host network cannot listen on the same port.
func Probe(ctx context.Context, w io.Writer, c config.Config, controller bool, path string) error {
	name := report.AgentSocket
	if controller {
		name = report.ControllerSocket
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://hairpin/"+path, nil)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	answer, err := socketClient(filepath.Join(c.Process.RunDir, name)).Do(q)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(w, answer.Body); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return report.ErrProblems
	}
	return nil
}
