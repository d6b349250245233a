package run

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric is one metric of a process, as docs/metrics.md lists it.
type Metric struct {
	Name   string
	Kind   string // "gauge", "counter", "histogram"
	Labels []string
	Help   string
	Of     string // "agent", "controller" or "both"
}

// Kinds of metrics, and whose they are.
const (
	gauge, counter, histogram   = "gauge", "counter", "histogram"
	ofAgent, ofController, both = "agent", "controller", "both"
)

// Metrics lists what the processes measure, besides what every Go program does (go_*, process_*).
func Metrics() []Metric {
	return slices.Concat(commonMetrics(), partMetrics(), nodeMetrics(), controllerMetrics())
}

func commonMetrics() []Metric {
	return []Metric{
		{"hairpin_build_info", gauge, []string{"version", "goversion"}, "What was built; always 1.", both},
		{"hairpin_ready", gauge, nil, "1 when /readyz says so: everything was in order once and is being kept. It does not say that every packet arrives.", both},
		{"hairpin_api_reachable", gauge, nil, "1 when the Kubernetes API answered the last call of this process; 0 also before the first. A failure (5xx) to serve one resource is an answer, failures to serve two are none. What is known stays in use meanwhile.", both},
		{"hairpin_problems", gauge, nil, "Objects' faults that this process knows of: those that `hairpin status` prints, or that are Events.", both},
		{"hairpin_plan_duration_seconds", histogram, nil, "Time to compute what a node must have, from facts in memory. Nothing is written in it.", both},
		{"hairpin_listener_up", gauge, []string{"for", "address"}, "1 when the process listens on an address it was told to.", both},
	}
}

func partMetrics() []Metric {
	part := []string{"part"}
	return []Metric{
		{"hairpin_part_in_sync", gauge, part, "1 when the part (ovn, openvswitch, nft, host, connections, and uplink where the agent made the gateway bridge) equals what is wanted, as far as the agent was told: a change by others counts from its notice. For ovn it means rows of the Northbound database, not flows.", ofAgent},
		{"hairpin_part_since_timestamp_seconds", gauge, part, "Unix time since when hairpin_part_in_sync has its value.", ofAgent},
		{"hairpin_part_reads_total", counter, part, "Times the part was read back from the real system.", ofAgent},
		{"hairpin_part_applies_total", counter, part, "Transactions that succeeded.", ofAgent},
		{"hairpin_part_written_total", counter, part, "Changes in them: rows, flows, elements, routes.", ofAgent},
		{"hairpin_part_drift_total", counter, part, "Differences that others made to what was in order, found on a read; they are repaired. What was changed and put back between two reads is not seen.", ofAgent},
		{"hairpin_part_errors_total", counter, part, "Reads and transactions that failed. Each is tried again.", ofAgent},
		{"hairpin_part_apply_duration_seconds", histogram, part, "Time of one transaction with the part, also of one that failed. For ovn it ends when the database has the rows, not when flows are in.", ofAgent},
		{"hairpin_pass_duration_seconds", histogram, nil, "Time of one comparison of all parts with what is wanted, with the reads and transactions it needed.", ofAgent},
	}
}

func nodeMetrics() []Metric {
	return []Metric{
		{"hairpin_data_plane_kept", gauge, nil, "1 when the data plane is being kept: what health checks of load balancers and /healthz go by, taints aside. An agent that was started while the API is away counts what its predecessor left as kept.", ofAgent},
		{"hairpin_node_eligible", gauge, nil, "0 when the Node is being deleted or about to be, so that /healthz asks load balancers to leave it alone.", ofAgent},
		{"hairpin_snapshot_objects", gauge, []string{"kind"}, "What the agent knows of the cluster: nodes, frontends (one per Service port and family), backends.", ofAgent},
		{"hairpin_pods", gauge, nil, "Pods of this node that have an interface, or are about to get one.", ofAgent},
		{"hairpin_ovs_restarts_total", counter, nil, "Starts of ovs-vswitchd that were noticed and repaired, the first one aside.", ofAgent},
		{"hairpin_health_check_node_ports", gauge, []string{"state"}, "Ports on which load balancers may ask for local endpoints: listening, or failed.", ofAgent},
		{"hairpin_cni_duration_seconds", histogram, []string{"command"}, "Time of a request of the CNI plugin in the agent, also of one that failed. The start of the plugin's process is not in it.", ofAgent},
		{"hairpin_cni_errors_total", counter, []string{"command", "code"}, "Requests of the CNI plugin that failed, by the code of the CNI specification.", ofAgent},
		{claimsDropped, counter, nil, "Frames in which others claimed an egress address of this node, and that were not looked into: the same was being asked about, or there were too many.", ofAgent},
		{"kubeproxy_network_programming_duration_seconds", histogram, []string{"ip_family"}, "Time from a change of a Service's endpoints (annotation endpoints.kubernetes.io/last-change-trigger-time, by the control plane's clock) until this node's flows have it: ovn-controller has confirmed it (hv_cfg). Changes from before the agent's start are not counted. One sample per Service, family and change.", ofAgent},
	}
}

func controllerMetrics() []Metric {
	return []Metric{
		{"hairpin_controller_leader", gauge, nil, "1 on the controller that holds the Lease and works.", ofController},
		{"hairpin_controller_nodes", gauge, nil, "Nodes of the cluster, as the leader knows them; 0 on others.", ofController},
		{"hairpin_controller_node_ids_given_total", counter, nil, "Node ids written by this process.", ofController},
		{"hairpin_controller_egress_assignments_total", counter, nil, "Times this process wrote that an EgressIP's addresses are on other nodes than before. It does not say that the nodes have them.", ofController},
	}
}

// programmingBuckets are those of kube-proxy, so that its dashboards and alerts fit: 0.25 s to 5 min.
func programmingBuckets() []float64 {
	return slices.Concat(prometheus.LinearBuckets(0.25, 0.25, 2), prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7))
}

// workBuckets are for work on this machine: 0.5 ms to 16 s.
func workBuckets() []float64 { return prometheus.ExponentialBuckets(0.0005, 2, 16) }
