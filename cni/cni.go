// Package cni connects pods to the network. It contains the CNI plugin that the container runtime
// runs, and the node agent's half, which does the work.
//
// The plugin (Main) only forwards its request to the agent over a unix socket. The agent (Server)
// keeps no state of its own: a pod's addresses are written on its Open vSwitch Interface row, which
// survives restarts, so the rows always match what is in use. ADD returns when OVN has installed
// the pod's flows: from then on the pod is reachable.
//
// Protocol: CNI 1.1 (ADD, DEL, CHECK, STATUS, GC, VERSION), https://www.cni.dev/docs/spec/.
// docs/design/cni.md describes the requests. A new option of a network is a field of netConf; a new
// fact of the node is a field of Facts.
package cni

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// Socket is the name of the agent's socket in its run directory.
const Socket = "cni.sock"

// Commands of a request. They have the names of CNI's.
const (
	cmdAdd    = "ADD"
	cmdDel    = "DEL"
	cmdCheck  = "CHECK"
	cmdStatus = "STATUS"
	cmdGC     = "GC"
)

// request is what the plugin sends: the parameters of CNI.
type request struct {
	Command     string          `json:"command"`
	ContainerID string          `json:"containerID,omitempty"`
	Netns       string          `json:"netns,omitempty"`
	IfName      string          `json:"ifName,omitempty"`
	Args        string          `json:"args,omitempty"`
	Config      json.RawMessage `json:"config"`
}

// reply is the agent's reply: a CNI result (of ADD) or a CNI error.
type reply struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *types.Error    `json:"error,omitempty"`
}

// netConf is the part of the network configuration that is read.
type netConf struct {
	types.PluginConf
	// RunDir is the agent's run directory; empty = /run/hairpin.
	RunDir string `json:"runDir,omitempty"`
	// RuntimeConfig contains the runtime's data for the capability portMappings.
	RuntimeConfig struct {
		PortMappings json.RawMessage `json:"portMappings"`
	} `json:"runtimeConfig"`
}

func parseConf(text []byte) (netConf, *types.Error) {
	var c netConf
	if err := json.Unmarshal(text, &c); err != nil {
		return c, types.NewError(types.ErrDecodingFailure, "network configuration", err.Error())
	}
	return c, nil
}

// codeDiffers is the error code of a CHECK that found a difference. Codes from 100 on are the
// plugin's own.
const codeDiffers uint = 100

func errInvalidEnv(format string, args ...any) *types.Error {
	return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf(format, args...), "")
}

func errInvalidConf(format string, args ...any) *types.Error {
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(format, args...), "")
}

func errTryLater(what string, err error) *types.Error {
	return types.NewError(types.ErrTryAgainLater, what, err.Error())
}

func errNotReady(why string) *types.Error {
	return types.NewError(types.ErrPluginNotAvailable, "the node's agent is not ready", why)
}

func errInternal(what string, err error) *types.Error {
	return types.NewError(types.ErrInternal, what, err.Error())
}

// podArgs are the Kubernetes parts of CNI_ARGS.
type podArgs struct{ namespace, name, uid string }

func parseArgs(args string) (podArgs, *types.Error) {
	var p podArgs
	for kv := range strings.SplitSeq(args, ";") {
		k, v, _ := strings.Cut(kv, "=")
		switch k {
		case "K8S_POD_NAMESPACE":
			p.namespace = v
		case "K8S_POD_NAME":
			p.name = v
		case "K8S_POD_UID":
			p.uid = v
		}
	}
	if p.namespace == "" || p.name == "" {
		return p, errInvalidEnv("CNI_ARGS has no K8S_POD_NAMESPACE and K8S_POD_NAME: %q", args)
	}
	return p, nil
}
