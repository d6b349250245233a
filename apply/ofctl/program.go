package ofctl

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"

	"hairpin/apply/late"
)

// program is an ovs-ofctl that runs.
type program struct {
	cmd            *exec.Cmd
	stdin          io.WriteCloser
	stdout, stderr bytes.Buffer
	end            context.CancelFunc
	done           chan struct{}
	err            error // when done
}

// start starts an ovs-ofctl that ends with ctx at the latest.
func (t *Target) start(ctx context.Context, args ...string) (*program, error) {
	p := &program{done: make(chan struct{})}
	ctx, p.end = context.WithCancel(ctx)
	p.cmd = t.cfg.Command(ctx, slices.Concat([]string{"ovs-ofctl", "-O", openFlow}, args)...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.WaitDelay = &p.stdout, &p.stderr, grace
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		p.end()
		return nil, fmt.Errorf("ovs-ofctl: %w", err)
	}
	go func() {
		defer close(p.done)
		defer p.end()
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

// finish gives it all its input, and gives its output when it has ended, or ctx has ended it.
func (p *program) finish(ctx context.Context, stdin string) (string, error) {
	defer context.AfterFunc(ctx, p.end)()
	_, _ = io.WriteString(p.stdin, stdin) // one that ended says why
	_ = p.stdin.Close()
	<-p.done
	if p.err != nil {
		return "", fmt.Errorf("ovs-ofctl: %w: %s", p.err, firstLines(p.stderr.String()))
	}
	return p.stdout.String(), nil
}

// bundle sends a bundle. For each pod that comes or goes there is one on a bridge of ours, and an ovs-ofctl takes longer to start than to send it: there a
// spare one waits, which connects when it has all its input. What it could not do, another one tries.
func (t *bridge) bundle(ctx context.Context, lines string) error {
	args := []string{"--no-names", "bundle", t.remote(t.name), "-"}
	late.For(ctx, vswitchd)
	spare := t.spare
	if t.key != "" {
		defer func() { t.spare, _ = t.start(t.life, args...) }() // without one it takes longer
	}
	if spare != nil {
		if _, err := spare.finish(ctx, lines); err == nil || ctx.Err() != nil {
			return err
		}
	}
	_, err := t.ofctl(ctx, lines, args...)
	return err
}
