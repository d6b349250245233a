package config

import (
	"fmt"
	"time"

	"hairpin/cluster"
)

// conntrackOptions returns the options for connection tracking. Except for those of pods, they have
// the names and meanings of kube-proxy's flags.
func conntrackOptions() []Option {
	of := func(c *Config) *cluster.ConntrackConfig { return &c.Cluster.Conntrack }
	entries := func(key, usage string, field func(*Config) *int) Option {
		return number("default", key, usage, field, 0, 1<<30)
	}
	seconds := func(key, usage string, field func(*Config) *time.Duration) Option {
		return Option{"default", key, usage + "; 0 = leave the host's value",
			func(c *Config, v string) error {
				d, err := time.ParseDuration(v)
				if v == "0" {
					d, err = 0, nil
				}
				if err != nil || d < 0 || d%time.Second != 0 {
					return fmt.Errorf("%q is not a time in whole seconds such as 24h or 90s", v)
				}
				*field(c) = d
				return nil
			},
			func(c *Config) string {
				if *field(c) == 0 {
					return "0"
				}
				return field(c).String()
			}}
	}
	return []Option{
		entries("conntrack-max-per-core",
			"maximum of tracked connections per core (net.netfilter.nf_conntrack_max); 0 = leave the host's value",
			func(c *Config) *int { return &of(c).MaxPerCore }),
		entries("conntrack-min", "minimum of the total that conntrack-max-per-core sets",
			func(c *Config) *int { return &of(c).Min }),
		entries("conntrack-pods-max",
			"maximum of tracked connections of pods on the userspace datapath, for all pods of a node together "+
				"(service-engine = openflow) or for each (ovn); 0 = no limit (see docs/operations/sizing.md)",
			func(c *Config) *int { return &of(c).PodsMax }),
		seconds("conntrack-tcp-timeout-established", "timeout of an idle TCP connection",
			func(c *Config) *time.Duration { return &of(c).TCPEstablished }),
		seconds("conntrack-tcp-timeout-close-wait", "timeout of a half-closed TCP connection",
			func(c *Config) *time.Duration { return &of(c).TCPCloseWait }),
		boolean("default", "conntrack-tcp-be-liberal",
			"treat out-of-window TCP packets as valid (net.netfilter.nf_conntrack_tcp_be_liberal)",
			func(c *Config) *bool { return &of(c).TCPLiberal }),
	}
}
