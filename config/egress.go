package config

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// EgressProbing configures the reachability probes of nodes that have egress addresses.
type EgressProbing struct {
	// [ovnkubernetesfeature] egressip-reachability-total-timeout: 0 = all nodes count as reachable
	Timeout       time.Duration
	Interval      time.Duration // egressip-reachability-interval
	Port          int           // egressip-node-healthcheck-port: of the agents' gRPC health service; 0 = TCP port 9
	Cert, Key, CA string        // egressip-node-healthcheck-cert, …-key, …-ca: files; empty = without TLS
}

// minProbeInterval is the minimum of egressip-reachability-interval. ProbeInterval may return half
// of it.
const minProbeInterval = 100 * time.Millisecond

// egressOptions returns the options of EgressIPs.
func egressOptions() []Option {
	const section = "ovnkubernetesfeature"
	of := func(c *Config) *EgressProbing { return &c.Process.Egress }
	return []Option{
		{section, "egressip-reachability-total-timeout",
			"seconds from the failure of a node until another node has its egress addresses, half of " +
				"them to detect the failure; 0 = all nodes count as reachable",
			func(c *Config, v string) error {
				n, err := strconv.ParseFloat(v, 64)
				if err != nil || n != 0 && n < 0.2 || n > 3600 || math.IsNaN(n) {
					return fmt.Errorf("%q is not a number of seconds such as 1 or 0.3, from 0.2 to 3600, or 0", v)
				}
				of(c).Timeout = time.Duration(math.Round(n*1000)) * time.Millisecond
				return nil
			},
			func(c *Config) string { return strconv.FormatFloat(of(c).Timeout.Seconds(), 'f', -1, 64) }},
		{section, "egressip-reachability-interval",
			"interval between probes of a node; shorter while an answer is late",
			func(c *Config, v string) error {
				d, err := time.ParseDuration(v)
				if err != nil || d < minProbeInterval || d > time.Hour {
					return fmt.Errorf("%q is not a time from %s to 1h, such as 200ms", v, minProbeInterval)
				}
				of(c).Interval = d
				return nil
			},
			func(c *Config) string { return of(c).Interval.String() }},
		number(section, "egressip-node-healthcheck-port",
			"TCP port of the agents' gRPC health service, the same for controller and agents; 0 = probe "+
				"TCP port 9 (discard)",
			func(c *Config) *int { return &of(c).Port }, 0, 65535),
		text(section, "egressip-node-healthcheck-cert",
			"PEM file with the certificate of the gRPC health service and of its clients; empty = no TLS",
			func(c *Config) *string { return &of(c).Cert }),
		text(section, "egressip-node-healthcheck-key",
			"PEM file with the private key of egressip-node-healthcheck-cert",
			func(c *Config) *string { return &of(c).Key }),
		text(section, "egressip-node-healthcheck-ca",
			"PEM file with the CA certificates that verify the peer's certificate",
			func(c *Config) *string { return &of(c).CA }),
	}
}

// ReplyTimeout returns the time without a reply after which a node counts as unreachable. The other
// half of Timeout is for the move of its addresses.
func (p *EgressProbing) ReplyTimeout() time.Duration { return p.Timeout / 2 }

// ProbeInterval returns the time between two probes of a node: Interval, or less, so that a node
// that misses one reply does not count as unreachable.
func (p *EgressProbing) ProbeInterval() time.Duration {
	return max(min(p.Interval, p.ReplyTimeout()*2/3), minProbeInterval/2)
}
