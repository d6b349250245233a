package config

import (
	"fmt"
	"net/netip"
)

// endpointOptions returns the listen addresses of the health and metrics endpoints.
func endpointOptions() []Option {
	return []Option{
		addresses("healthz-bind-address",
			"addresses at which the agent serves /livez, /readyz and /healthz; empty = none",
			func(c *Config) *[]netip.AddrPort { return &c.Process.Healthz }),
		addresses("metrics-bind-address",
			"addresses at which the agent serves /metrics to every client, without TLS; empty = none",
			func(c *Config) *[]netip.AddrPort { return &c.Process.Metrics }),
		addresses("controller-healthz-bind-address",
			"addresses at which the controller serves /livez, /readyz and /healthz; empty = its socket only",
			func(c *Config) *[]netip.AddrPort { return &c.Process.ControllerHealthz }),
		addresses("controller-metrics-bind-address",
			"addresses at which the controller serves /metrics to every client, without TLS; empty = its socket only",
			func(c *Config) *[]netip.AddrPort { return &c.Process.ControllerMetrics }),
		addresses("metrics-secure-bind-address",
			"addresses at which the agent serves /metrics by TLS, to clients with an authorized token; empty = none",
			func(c *Config) *[]netip.AddrPort { return &c.Process.SecureMetrics }),
		addresses("controller-metrics-secure-bind-address",
			"addresses at which the controller serves /metrics by TLS, to clients with an authorized token; "+
				"empty = none",
			func(c *Config) *[]netip.AddrPort { return &c.Process.ControllerSecureMetrics }),
		text("default", "metrics-cert",
			"PEM file with the certificate of the TLS addresses of /metrics; empty = a self-signed one",
			func(c *Config) *string { return &c.Process.MetricsCert }),
		text("default", "metrics-key", "PEM file with the private key of metrics-cert",
			func(c *Config) *string { return &c.Process.MetricsKey }),
	}
}

// addresses returns an option of section [default] for a list of addresses with ports. It may be
// empty.
func addresses(key, usage string, field func(*Config) *[]netip.AddrPort) Option {
	return Option{"default", key, usage,
		func(c *Config, v string) error {
			var list []netip.AddrPort
			for _, t := range splitList(v) {
				a, err := netip.ParseAddrPort(t)
				if err != nil || a.Addr().Is4In6() || a.Port() == 0 {
					return fmt.Errorf("%q is not an address with a port, such as 0.0.0.0:10256 or [::]:10256", t)
				}
				list = append(list, a)
			}
			*field(c) = list
			return nil
		},
		func(c *Config) string { return join(*field(c)) }}
}

// addrPorts parses the default addresses.
func addrPorts(addresses ...string) (list []netip.AddrPort) {
	for _, a := range addresses {
		list = append(list, netip.MustParseAddrPort(a))
	}
	return list
}
