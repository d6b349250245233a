package ofctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"hairpin/apply/late"
	"hairpin/claims"
	"hairpin/ovsdb"
)

// callTimeout limits one command to a daemon: a daemon responds at once or hangs.
const callTimeout = 5 * time.Second

// call sends one command to the control socket of a daemon, as ovs-appctl(8) does, and returns the
// result. The protocol is JSON-RPC 1.0, with one request per connection.
func call(ctx context.Context, socket, method string, params ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return "", fmt.Errorf("%s: %w", method, err)
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", fmt.Errorf("%s: %w", method, err)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if params == nil {
		params = []string{}
	}
	request := map[string]any{"id": 0, "method": method, "params": params}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return "", fmt.Errorf("%s: %w", method, err)
	}
	var reply struct{ Result, Error *string }
	if err := json.NewDecoder(conn).Decode(&reply); err != nil {
		return "", fmt.Errorf("%s: %w", method, err)
	}
	switch {
	case reply.Error != nil:
		return "", fmt.Errorf("%s: %s", method, strings.TrimSpace(*reply.Error))
	case reply.Result == nil:
		return "", fmt.Errorf("%s: %w", method, errors.New("an answer without a result"))
	}
	return *reply.Result, nil
}

// Ask sends ovs-vswitchd a command of ovs-appctl, and returns its result.
func (t *Target) Ask(ctx context.Context, method string, params ...string) (string, error) {
	return t.vswitchd(ctx, method, params...)
}

// vswitchd sends a command to ovs-vswitchd.
func (t *Target) vswitchd(ctx context.Context, method string, params ...string) (string, error) {
	late.For(ctx, vswitchd)
	pid, err := os.ReadFile(t.cfg.Path(t.pidFile()))
	if err != nil {
		return "", fmt.Errorf("ovs-vswitchd does not run: %w", err)
	}
	socket := filepath.Join(t.cfg.RunDir, "ovs-vswitchd."+strings.TrimSpace(string(pid))+".ctl")
	answer, err := call(ctx, t.cfg.Path(socket), method, params...)
	if err != nil {
		return "", fmt.Errorf("ovs-vswitchd: %w", err)
	}
	return answer, nil
}

// Forget deletes the megaflows for packets from a new port and to its addresses. A new port can
// have the number in the datapath, and the addresses, of a port that was removed a moment ago.
// Until Open vSwitch has revalidated its megaflows, its decisions about the former port would apply
// to the new one.
func (t *Target) Forget(ctx context.Context, port string, addresses []netip.Addr) error {
	filters := []string{"in_port=" + port}
	for _, a := range addresses {
		to := "ip,nw_dst="
		if a.Is6() {
			to = "ipv6,ipv6_dst="
		}
		filters = append(filters, to+a.String())
	}
	b := ovsdb.Find(t.db.View(), func(b *ovsdb.Bridge) bool { return b.Name == claims.IntegrationBridge })
	if b == nil {
		return fmt.Errorf("Open vSwitch has no bridge %s", claims.IntegrationBridge)
	}
	datapath := dpctlName(b.DatapathType == userspace)
	for _, filter := range filters {
		list, err := t.vswitchd(ctx, "dpctl/dump-flows", "-m", datapath, "filter="+filter)
		if err != nil {
			return err
		}
		for line := range strings.Lines(list) {
			id, _, _ := strings.Cut(line, ",")
			if !strings.HasPrefix(id, "ufid:") {
				continue
			}
			// Open vSwitch may have deleted it itself, or two filters have found it.
			_, err := t.vswitchd(ctx, "dpctl/del-flow", datapath, id)
			if err != nil && !strings.Contains(err.Error(), "No such file") {
				return err
			}
		}
	}
	return nil
}

func (t *Target) pidFile() string { return filepath.Join(t.cfg.RunDir, "ovs-vswitchd.pid") }
