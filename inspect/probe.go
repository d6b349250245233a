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

// Probe requests what ("livez", "readyz", "healthz" or "metrics") from the agent, or the
// controller, through the socket in the run directory. It prints the answer; a nil error means
// success. It is for exec probes, where two processes in the host network cannot have the same
// port.
func Probe(ctx context.Context, w io.Writer, c config.Config, controller bool, what string) error {
	name := report.AgentSocket
	if controller {
		name = report.ControllerSocket
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://hairpin/"+what, nil)
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
