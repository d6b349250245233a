package config

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
)

// Process is the configuration of one process. Package plan does not use it.
type Process struct {
	Node       string // [default] node: the name of the Node this agent works for; empty = the host's name
	Kubeconfig string // [kubernetes] kubeconfig: empty = the service account of the pod
	Manifests  string // [kubernetes] manifests: a folder to read instead of the API
	RunDir     string // [default] run-dir: sockets of the agent
	OVSRunDir  string // [default] ovs-run-dir: db.sock and the control sockets of Open vSwitch
	OVNRunDir  string // [default] ovn-run-dir: sockets of the node's OVN databases
	LogLevel   string // [logging] level: debug, info, warn, error
	Repair     bool   // [default] repair: repair drift
	Uplink     string // [gateway] uplink: the device to take into the gateway bridge; empty = the default route's

	TakeOver bool // [gateway] take-over: in mode detached, remove a gateway bridge that another program made

	Egress EgressProbing // [ovnkubernetesfeature]

	Healthz, Metrics                       []netip.AddrPort // [default] healthz-bind-address, metrics-bind-address
	ControllerHealthz, ControllerMetrics   []netip.AddrPort // of the controller; empty = only at its socket
	SecureMetrics, ControllerSecureMetrics []netip.AddrPort // by TLS, for clients with an authorized token
	MetricsCert, MetricsKey                string           // [default] metrics-cert, metrics-key
}

// Logger returns a logger for messages of the configured level and above.
func Logger(c Config, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Process.LogLevel)); err != nil {
		level = slog.LevelInfo // of a Config that Option.Set did not set
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
