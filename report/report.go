// Package report has what an agent says of itself: the agent writes it, commands read it.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"hairpin/cluster"
)

// AgentSocket is the name of the socket, in the run directory, on which the agent tells about
// itself.
const AgentSocket = "agent.sock"

// Report is what the agent tells about itself.
type Report struct {
	Node     string   `json:"node"`
	Version  string   `json:"version"`
	Ready    bool     `json:"ready"`
	Reason   string   `json:"reason,omitempty"` // why not Ready
	Parts    []Part   `json:"parts"`
	Problems []string `json:"problems,omitempty"`
	Pods     int      `json:"pods"`
	Services int      `json:"services"`      // frontends: one per address family and port
	Engine   string   `json:"serviceEngine"` // what serves pods that go to Services: "ovn" or "openflow"
	Restarts uint64   `json:"restarts"`      // of Open vSwitch, seen and repaired

	Neglected string     `json:"neglected,omitempty"` // why the data plane is not being kept
	NoRepair  bool       `json:"noRepair,omitempty"`  // what others change stays ([default] repair)
	Leaving   bool       `json:"leaving,omitempty"`   // the Node is about to go: /healthz says no
	API       *API       `json:"api,omitempty"`       // none when the agent reads manifests
	Doors     []Listener `json:"doors,omitempty"`     // where the agent can be asked

	Switch *Switch `json:"openvswitch,omitempty"` // none until it has told its version

	Redirect *Redirect `json:"redirect,omitempty"` // of clients' packets; none without eBPF programs

	Egress []Egress `json:"egress,omitempty"` // every egress address of the cluster
}

// Switch is the node's Open vSwitch.
type Switch struct {
	Version   string `json:"version"` // of the ovs-vswitchd that runs
	Userspace bool   `json:"userspace"`
	// the userspace datapath takes TCP segments that the kernel has not cut
	TSO    bool     `json:"tso"`
	Faults []string `json:"faults,omitempty"` // what is known to be wrong in this version
}

// Redirect is how many packets the eBPF programs took, and what they left to the host's stack.
type Redirect struct {
	Requests  uint64 `json:"requests"`  // led to the gateway router
	Replies   uint64 `json:"replies"`   // led to a link
	Fragments uint64 `json:"fragments"` // left, whoever they are for
	// replies that were left: the host has no way to the client, or none that is wide enough
	NoRoute uint64 `json:"noRoute"`
}

// Part is one system of the node.
type Part struct {
	System  string    `json:"system"`
	InSync  bool      `json:"inSync"`
	Since   time.Time `json:"since"`
	Error   string    `json:"error,omitempty"`
	Reads   uint64    `json:"reads"`
	Applies uint64    `json:"applies"`
	Written uint64    `json:"written"`
	Drift   uint64    `json:"drift"`
	Errors  uint64    `json:"errors"`
}

// Listener is an address on which the process listens, or would.
type Listener struct {
	For     string `json:"for"` // "healthz", "metrics"
	Address string `json:"address"`
	Error   string `json:"error,omitempty"` // why it does not listen there
}

// API is how the API server is, as this process sees it.
type API struct {
	Away  bool      `json:"away"`
	Since time.Time `json:"since,omitzero"` // since when it is away
	Error string    `json:"error,omitempty"`
}

// Egress is one egress address.
type Egress struct {
	EgressIP string `json:"egressIP"` // its name; "NAMESPACE/NAME" of an EgressService
	Address  string `json:"address"`
	Node     string `json:"node,omitempty"` // that carries it, as the agent sees it
	Why      string `json:"why,omitempty"`  // it has no node, one that does not answer, or another than the status says
}

// ControllerSocket is the name of the socket, in the run directory, on which a controller tells
// about itself. Two on one node that share no run directory share nothing at all, so that each can
// be probed.
const ControllerSocket = "controller.sock"

// Parse reads the answer of an agent, of which nothing is trusted: a terminal only prints its
// texts.
func Parse(body []byte) (*Report, error) {
	var r Report
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, fmt.Errorf("answer of the agent: %w", err)
	}
	if r.Node == "" {
		return nil, errors.New("answer of the agent: names no node")
	}
	PlainStrings(&r)
	return &r, nil
}

// OpenFlow tells that flows and groups serve Services. Agents of v0.1.0, which knew OVN's load
// balancers only, name no engine.
func (r *Report) OpenFlow() bool { return r.Engine == cluster.EngineOpenFlow }

// Well tells that there is nothing to be done.
func (r *Report) Well() bool {
	for _, p := range r.Parts {
		if !p.InSync {
			return false
		}
	}
	for _, d := range r.Doors {
		if d.Error != "" {
			return false
		}
	}
	return r.Ready && r.Neglected == "" && len(r.Problems) == 0 && (r.API == nil || !r.API.Away)
}
