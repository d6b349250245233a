// Package unixctl sends commands to the control sockets of the daemons of Open vSwitch and OVN.
package unixctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// timeout limits one command to a daemon: a daemon responds at once or hangs.
const timeout = 5 * time.Second

// Call sends one command to the control socket of a daemon, as ovs-appctl(8) does, and returns the
// result. The protocol is JSON-RPC 1.0, with one request per connection.
func Call(ctx context.Context, socket, method string, params ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
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

// Ask sends a command to a daemon. It finds the control socket in dir by the daemon's pid file.
func Ask(ctx context.Context, dir, daemon, method string, params ...string) (string, error) {
	pid, err := os.ReadFile(filepath.Join(dir, daemon+".pid"))
	if err != nil {
		return "", fmt.Errorf("%s does not run: %w", daemon, err)
	}
	socket := filepath.Join(dir, daemon+"."+strings.TrimSpace(string(pid))+".ctl")
	answer, err := Call(ctx, socket, method, params...)
	if err != nil {
		return "", fmt.Errorf("%s: %w", daemon, err)
	}
	return answer, nil
}

// counted matches an entry of Memory's answer. Names may contain spaces.
var counted = regexp.MustCompile(`([A-Za-z][^:\n]*):(\d+)`)

// Memory parses the answer to "memory/show": the number of objects that a daemon has in memory, by
// kind.
func Memory(text string) map[string]uint64 {
	all := map[string]uint64{}
	for _, m := range counted.FindAllStringSubmatch(text, -1) {
		if n, err := strconv.ParseUint(m[2], 10, 64); err == nil {
			all[m[1]] = n
		}
	}
	return all
}
